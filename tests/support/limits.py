"""How long tests wait for what must happen, before they say that it does not."""

LIMIT = 240
"""Seconds for a process to end or a state to come. No machine that is merely busy reaches it; a
test that hangs in another way is ended by pytest (`faulthandler_timeout` in pyproject.toml).
"""
