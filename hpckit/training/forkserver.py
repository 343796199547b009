"""Begins the torchrun of each generation on its node by a fork, with all imports done.

`python -m hpckit.training.forkserver` is a child of the node's agent. It imports torch once, in
idle moments, then reads orders from its standard input, a line of JSON each, and says on its
standard output what process it has begun and how that ended: one at a time. All die with it.

It calls nothing of what it imports, so a fork of it is as good as a new process.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

from hpckit.run.processes import die_with_parent, write_to
from hpckit.training.gentle import Gentle


def main() -> None:
    """Import, then be the server; in a fork, the torchrun that was ordered."""
    gc.disable()  # imports make 300,000 objects, and all stay
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what else is printed is no answer
    gentle = Gentle(sys.stdin.fileno())
    sys.meta_path.insert(0, gentle)
    from hpckit.training import forking

    sys.meta_path.remove(gentle)
    arguments = serve(answers)
    if arguments is not None:
        forking.main(arguments)


def serve(answers: int) -> list[str] | None:
    """None when nobody orders any more; in a fork: the arguments of the torchrun that it is to be.

    A torchrun that has ended is reaped at the next order: until then no other process has its
    number, and who kills it by that kills nobody else.
    """
    gc.freeze()  # no collection of theirs is to write to the pages that all forks share
    server, ended = os.getpid(), 0
    while line := sys.stdin.buffer.readline():
        if ended:
            os.waitpid(ended, 0)
        ended = os.fork()
        if not ended:
            die_with_parent(server)
            os.close(answers)
            gc.enable()
            return _begin(**json.loads(line))
        _say(answers, kind="begun", pid=ended)
        _say(answers, kind="ended", returncode=_wait(ended))
    return None


def _begin(arguments: list[str], environment: dict[str, str], output: str) -> list[str]:
    """As `hpckit.run.processes.spawn` would have started it."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    write_to(Path(output))
    threads = os.environ["OMP_NUM_THREADS"]
    os.environ.clear()
    os.environ.update(environment)
    if os.environ["OMP_NUM_THREADS"] != threads:  # libraries take it when they are loaded
        program = [sys.executable, "-m", "hpckit.training.forking"]
        os.execv(program[0], [*program, *arguments])
    return arguments


def _wait(pid: int) -> int:
    """Its exit status, or minus the signal that ended it, as of subprocess. It is not reaped."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None  # it waits until there is one
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _say(answers: int, **message: Any) -> None:
    os.write(answers, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
