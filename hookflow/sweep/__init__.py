"""Sweeps, an optional part: many runs of one pipeline with other values,
their search and their execution.
"""
