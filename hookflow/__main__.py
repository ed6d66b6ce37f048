"""`python -m hookflow` is `hookflow`."""

from hookflow.cli.app import main

main()
