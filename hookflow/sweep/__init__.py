"""Sweeps, an optional part: many runs of one pipeline with other values.

It has their search and their execution.
"""
