"""A plan, drawn: text for a terminal, SVG and HTML, Mermaid and DOT.

Functions from a plan to a string.
"""
