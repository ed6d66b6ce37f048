"""The processes of a run: launching, attempts, signals, threads."""
