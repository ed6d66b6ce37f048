"""One attempt at a run in its own process: from the start to the exit code."""
