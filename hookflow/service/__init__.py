"""Finding runs, reading pipelines and judging them.

The command line and the Python API share it.
"""
