"""The dashboard in a browser of this machine, by textual-serve.

The core imports nothing of this.
"""
