"""The built-in hooks, a file each, and what several of them share."""
