"""Checkpoints as files: manifest, store, shards, copies, and the rules of a resume."""
