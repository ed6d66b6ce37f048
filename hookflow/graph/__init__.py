"""From a pipeline to a plan: points, edges, order, and how to draw them.

Imports neither torch nor textual.
"""
