"""The entry of the training process."""

from hookflow.runner.attempt.main import main

main()
