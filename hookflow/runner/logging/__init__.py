"""The record of a run: events, timings, media, and writers."""
