"""The version, by itself: what a run records must not import all that `hookflow` offers."""

__version__ = "0.1.0"
