"""Offload, an optional part: hooks that fire in threads or processes of their own.

The core loads it by name.
"""
