"""Building the components of a run."""
