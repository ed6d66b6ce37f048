"""One training iteration: the context of a run, the run that hooks see, requests, update."""
