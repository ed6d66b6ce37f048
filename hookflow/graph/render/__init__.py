"""A plan, drawn: as text for a terminal, Mermaid, DOT and JSON."""
