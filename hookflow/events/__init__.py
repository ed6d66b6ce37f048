"""The run directory: what a run tells the world, and what the world asks of a run.

Files, so that they outlive both.
"""
