"""The notifications of a run.

`python -m hookflow.notify` watches it, and sends what `[notify]` requests.

The command that starts a training starts this process beside it, in a session of its own. It
outlives the terminal, the dashboard and a training that is killed, and it reads nothing but the
logs. The core imports nothing of this.
"""
