"""Objects: files named by the SHA-256 of their bytes, and the packs of records inside them."""
