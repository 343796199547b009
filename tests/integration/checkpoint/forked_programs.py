"""Programs in processes that end as any process ends, but have torch imported from the start."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.forkserver import WITH_IMPORTS
from tests.integration.service.running_services import REPOSITORY

LIMIT_S = 300

# For each line of orders, forks once for each list of arguments; the children run the program as if
# it stood here, the parent says how they ended
_FORKS = """
import gc, json, os, signal, sys, time, torch
import torch.distributed as dist
import checkpointing.checkpointer
from checkpointing import Checkpointer, SaveError
from pathlib import Path

torch.optim.SGD([torch.zeros(1)])  # imports what makes it slow
gc.freeze()  # or each child goes through all that at its end
print(os.getpid(), flush=True)
for line in sys.stdin:
    order, children = json.loads(line), []
    tmp = Path(order["tmp"])
    for arguments in order["arguments"]:
        if (pid := os.fork()) == 0:
            break
        children.append(pid)
    else:
        statuses = []
        for number, pid in enumerate(children):
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            (tmp / f"ended-{number}").touch()
        print(json.dumps(statuses), flush=True)
        continue
    break
else:
    os._exit(0)
os.dup2(2, 1)  # what they print is no answer
os.environ |= order["env"]
exec(compile(order["program"], "program", "exec"))
"""


def run_forked(tmp: Path, program: str, *arguments: Sequence[object]) -> list[int]:
    """Run the program at the same time in as many processes as there are lists of arguments. Each
    finds its own in `arguments`, and `tmp`, in which `ended-<n>` says that the n-th has ended (once
    those before have). Their exit statuses."""
    order = {
        "tmp": str(tmp),
        "program": program,
        "arguments": [[str(one) for one in each] for each in arguments],
        "env": {name: text for name, text in os.environ.items() if name.startswith("HPCKIT_")},
    }
    parent, group = _parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps(order) + "\n")
    parent.stdin.flush()
    if not select.select([parent.stdout], [], [], LIMIT_S)[0]:
        _parent.cache_clear()
        os.killpg(group, signal.SIGKILL)
        raise AssertionError(f"these are not over in {LIMIT_S} s: {order['arguments']}")
    statuses: list[int] = json.loads(parent.stdout.readline())
    return statuses


@functools.cache
def _parent() -> tuple[subprocess.Popen[str], int]:
    """A process that ends when nobody can write to it any more, and the number of the group that
    it and its children are in, which is another one's if it is a fork."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _FORKS],
        cwd=REPOSITORY,
        env=os.environ | WITH_IMPORTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_end, parent)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def _end(parent: subprocess.Popen[str]) -> None:
    parent.communicate()
