"""The entry point of the service process: `python -m checkpointing.service SOCKET`, with the
configuration on stdin.

It writes one line of JSON to stdout that says whether the service is ready. The process leaves the
session of its starter, so that what ends a job's trainers does not end it, and exits once
nobody needs it any more.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(path: Path, *, foreground: bool) -> int:
    text = sys.stdin.read()
    # Double fork, before there are threads: the starter has no child to reap and does not wait.
    if not foreground and os.fork():
        os._exit(0)
    from checkpointing.service.process import run

    return run(path, text)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), foreground="--foreground" in sys.argv[2:]))
