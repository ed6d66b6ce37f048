"""A plan, drawn: text and boxes for a terminal, SVG and HTML, Mermaid and DOT. Functions from a plan to a string."""
