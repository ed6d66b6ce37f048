"""Several processes that train one model.

The package has who they are, how they start and end, what they share and agree on.
"""
