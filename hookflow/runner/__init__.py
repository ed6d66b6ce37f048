"""Runs a plan: loops, dispatch, timing, device, checkpoints. Imports torch only where it trains."""
