"""From a dataset, or a source of the user's own, to batches on the device,
from any place in an epoch.
"""
