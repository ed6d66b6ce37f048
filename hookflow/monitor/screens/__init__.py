"""The pages of the dashboard: a Textual screen a file."""
