"""The service's process: `python -m checkpointing.service SOCKET`, its configuration on stdin.

Says in one line of JSON on stdout whether it is ready. Leaves its starter's session, so that what
ends a job's trainers does not end it; ends by itself once nobody needs it any more.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(path: Path, *, foreground: bool) -> int:
    text = sys.stdin.read()
    # its starter has no child to reap, and does not wait for one; before anything has threads
    if not foreground and os.fork():
        os._exit(0)
    from checkpointing.service.process import run

    return run(path, text)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), foreground="--foreground" in sys.argv[2:]))
