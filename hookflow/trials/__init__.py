"""Trials of a pipeline that keep nothing.

These are dry run, observation, other orders of hooks, evaluation of a checkpoint.
"""
