"""Dispatch: which bindings fire at a point, and the hooks that PyTorch calls."""
