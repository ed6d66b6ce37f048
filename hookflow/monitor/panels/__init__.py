"""The panels, one file each: pure functions from a scene and a size to rows."""
