"""What numbers are computed in, and what becomes of those that are not finite or do not fit."""
