"""Runs an example again and again in processes that have it imported from the start.

    python -m tests.integration.examples.forking_server MODULE [IMPORT ...]

The other modules are those that the program imports itself.

For each line of orders it forks a process that runs the example as a program does, alone or on
several ranks that are its children, and tells its number; then it tells how another one has ended,
if that is asked. What is tested is what an example does when it is killed and started again; to
import torch and a framework each time would take most of the time.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]


def main() -> None:
    module, *_ = [importlib.import_module(name) for name in sys.argv[1:]]
    torch.optim.SGD([torch.zeros(1)])  # imports what makes it slow
    gc.freeze()  # or each child goes through all that at its end
    for line in sys.stdin:
        order = json.loads(line)
        if "ended" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["ended"], 0)[1])
        elif (answer := os.fork()) == 0:
            begin(module.main, order)
            return
        print(answer, flush=True)


def begin(example: Callable[[], None], order: Mapping[str, Any]) -> None:
    """Run the example in this fork, or on ranks that it starts, to its end."""
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    output = os.open(order["output"], os.O_WRONLY)  # a FIFO, which has a reader from now on
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in enumerate((nothing, output, output)):
        os.dup2(source, descriptor)
    sys.argv = [example.__module__, *order["arguments"]]
    if order["ranks"] is None or become_rank(order["ranks"]):
        example()


def become_rank(count: int) -> bool:
    """Start so many ranks and wait for their end. True in a rank, which has the environment that
    torchrun gives it."""
    pipes = [os.pipe() for _ in range(count)]
    children = []
    for rank, (port, _) in enumerate(pipes):
        if (child := os.fork()) == 0:
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count}
            places |= {"LOCAL_WORLD_SIZE": count, "MASTER_PORT": int(os.read(port, 16))}
            os.environ |= {name: str(value) for name, value in places.items()}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
            os.environ["TORCHELASTIC_RUN_ID"] = "none"
            return True
        children.append(child)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _, told in pipes:
        os.write(told, str(store.port).encode())
    for _ in children:
        if os.wait()[1] != 0:  # the other ranks would wait for it
            os.killpg(0, signal.SIGKILL)
    return False


if __name__ == "__main__":
    main()
