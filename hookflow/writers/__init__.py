"""What carries the results of a run to somewhere else: the base class, and the built-in writers (a file each)."""
