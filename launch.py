"""Start a run, or go on with it: `python launch.py [GROUP=OPTION ...] [KEY=VALUE ...]`."""

import sys

from hpckit.launch.main import main

if __name__ == "__main__":
    sys.exit(main())
