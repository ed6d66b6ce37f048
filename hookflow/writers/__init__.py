"""Writers that send the results of a run elsewhere: the base class, and the built-in writers (a file each)."""
