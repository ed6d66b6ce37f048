"""The Python API, as `import hookflow` offers it.

`hookflow.load`, `train`, `runs` and `load_run` are in it, with the objects that they return.
"""
