"""Programs in processes that end as any process ends, but have torch imported from the start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.integration.nodeservices import REPOSITORY

LIMIT_S = 120

# Forks once for each list of arguments; the children go on below, the parent says how they ended
_FORKS = """
import json, os, signal, sys, time, torch
import torch.distributed as dist
import checkpointing.checkpointer
from checkpointing import Checkpointer, SaveError
from pathlib import Path

torch.optim.SGD([torch.zeros(1)])  # imports what makes it slow
tmp, children = Path(sys.argv[1]), []
for arguments in json.loads(sys.argv[2]):
    if (pid := os.fork()) == 0:
        break
    children.append(pid)
else:
    statuses = []
    for number, pid in enumerate(children):
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        (tmp / f"ended-{number}").touch()
    print(json.dumps(statuses))
    os._exit(0)
"""


def run_forked(tmp: Path, program: str, *arguments: Sequence[object]) -> list[int]:
    """Run the program at the same time in as many processes as there are lists of arguments. Each
    finds its own in `arguments`, and `tmp`, in which `ended-<n>` says that the n-th has ended (once
    those before have). Their exit statuses."""
    plain = json.dumps([[str(one) for one in each] for each in arguments])
    ended = subprocess.run(
        [sys.executable, "-c", _FORKS + program, str(tmp), plain],
        cwd=REPOSITORY,
        timeout=LIMIT_S,
        stdout=subprocess.PIPE,
        check=True,
    )
    statuses: list[int] = json.loads(ended.stdout.splitlines()[-1])
    return statuses
