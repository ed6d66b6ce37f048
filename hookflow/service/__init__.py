"""Finding runs, reading pipelines and judging them:
what the command line and the Python API share.
"""
