"""An update type and a checkpoint format of a package of its own, for theta-daemon."""
