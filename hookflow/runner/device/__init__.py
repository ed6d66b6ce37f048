"""The machine's side of a run: device, precision, settings of PyTorch, random generators."""
