"""The dashboard and the plain lines: one fold of the event log, with two faces. Never imports torch."""
