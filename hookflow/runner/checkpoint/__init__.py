"""The state of a run: taken out of it, brought to the disk, checked, and put back to the bit."""
