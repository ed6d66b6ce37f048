"""Watches what hooks read and write in a run that is made for it; no other run imports it."""
