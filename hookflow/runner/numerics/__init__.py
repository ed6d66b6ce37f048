"""Precision of numbers, and handling of those that are not finite or too large."""
