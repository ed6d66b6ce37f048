"""Offload, an optional part: hooks that fire in threads or processes of their own,
which the core loads by name.
"""
