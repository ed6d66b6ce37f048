"""The entry of the training process."""

from hookflow.runner.process import main

main()
