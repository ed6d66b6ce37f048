"""Trials of a pipeline that keep nothing: dry run, observation, other orders of hooks,
evaluation of a checkpoint.
"""
