"""Reruns, an optional part: iterations of a recorded run,
done again and compared with the recording.
"""
