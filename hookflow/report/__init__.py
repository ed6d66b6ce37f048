"""Pages of HTML on a run, and on runs beside one another. The core imports nothing of this."""
