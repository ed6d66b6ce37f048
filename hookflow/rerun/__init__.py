"""Reruns, an optional part.

Iterations of a recorded run are done again and compared with the recording.
"""
