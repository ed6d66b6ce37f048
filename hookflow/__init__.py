"""hookflow: a training runner whose hooks are nodes of a graph."""

__version__ = "0.1.0"
