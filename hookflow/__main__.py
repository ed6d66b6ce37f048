"""`python -m hookflow` is `hookflow`.

The current folder is not searched for modules, as it is not in a training.
"""

import sys

if not sys.flags.safe_path:
    del sys.path[0]

from hookflow.cli.start import main

main()
