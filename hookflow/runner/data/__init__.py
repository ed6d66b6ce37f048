"""From a dataset, or a source of the user's own, to batches on the device.

They begin at any place in an epoch.
"""
