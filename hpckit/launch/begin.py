"""`python -m hpckit.launch.begin RUN SUBMISSION`: the supervisor, as a process of its own."""

from __future__ import annotations

import sys

from hpckit.elastic.verdict import REFUSED
from hpckit.launch.supervise import supervise
from hpckit.run.lock import RunHeldError


def main() -> int:
    """Its exit status is that of the run."""
    run, number = sys.argv[1:]
    try:
        return supervise(run, int(number))
    except RunHeldError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
