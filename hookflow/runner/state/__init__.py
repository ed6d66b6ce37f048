"""The state of a run: registered part by part, captured, saved and restored to the bit."""
