"""`hookflow.attach`: the graph of hooks in a training loop of the user's own."""
