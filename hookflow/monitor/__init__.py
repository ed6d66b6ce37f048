"""The monitor: what a run tells, folded into one state and drawn.

Knows the run directory and nothing of training.
"""
