"""The Python API: `hookflow.load`, `train`, `runs` and `load_run`,
and the objects that they return.
"""
