"""Updates: how a parameter's value is obtained. Arrays in, arrays out; no path, no object id, no thread."""
