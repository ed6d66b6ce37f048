"""The version, by itself: what a run records must not import all that `hookflow` offers."""

__version__ = "0.2.0.dev0"
