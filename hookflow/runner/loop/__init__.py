"""The training loop: epochs, validations, safe points, commands, and the trainer."""
