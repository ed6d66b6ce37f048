"""The entry of the training process."""

from hookflow.runner.process.main import main

main()
