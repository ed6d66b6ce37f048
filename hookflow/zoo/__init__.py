"""Models, data and tasks that the shipped pipelines use."""
