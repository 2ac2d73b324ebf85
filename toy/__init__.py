"""The embedded world (world.py) and the small backbone that has learned to answer about it (backbone.py)."""
