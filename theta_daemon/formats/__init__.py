"""Checkpoint formats: where the parameters lie in a file. Views in, extents out; no path, no store, no thread."""
