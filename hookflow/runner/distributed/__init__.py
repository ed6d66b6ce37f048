"""Several processes that train one model: who they are, how they start and end,
what they share and agree on.
"""
