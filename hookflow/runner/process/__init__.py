"""A process that trains: its start, signals, open files and the counters of its run."""
