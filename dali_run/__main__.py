"""Run the command line as a module: ``python -m dali_run`` is the same as ``dali-run``."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
