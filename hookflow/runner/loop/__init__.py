"""The training loop: iterations, validations, safe points, and the run that hooks see."""
