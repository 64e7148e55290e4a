"""theta-daemon: a resident git filter that stores machine-learning checkpoints as per-parameter updates."""

__version__ = "0.1.0"
