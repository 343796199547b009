"""A trainer as a process of its own, to be killed: does what it is told on its standard input.

python -m tests.integration.service.service_trainer '{"config": ..., "rank": ..., ...}'
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from checkpointing.service.config import ServiceConfig, dump, load
from checkpointing.service.snapshots import Generation
from tests.integration.service.service_nodes import Trainer


class TrainerProcess:
    """The other side. It is killed at the end of a `with`."""

    def __init__(
        self,
        config: ServiceConfig,
        rank: int,
        ranks: Sequence[int],
        generation: Generation,
        rows: int,
    ) -> None:
        plain = {
            "config": dump(config),
            "rank": rank,
            "ranks": list(ranks),
            "generation": asdict(generation),
            "rows": rows,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(plain)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def do(self, command: str, step: int) -> None:
        """Have it "save", "begin" (fill a slot by half) or "await" (a commit), and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command} {step}\n")
        self._process.stdin.flush()
        self._answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> TrainerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "done\n", f"the trainer said {line!r}"


def main() -> None:
    plain = json.loads(sys.argv[1])
    trainer = Trainer(
        load(plain["config"]),
        plain["rank"],
        frozenset(plain["ranks"]),
        Generation(**plain["generation"]),
        rows=plain["rows"],
    )
    trainer.register_arena()
    print("done", flush=True)
    for line in sys.stdin:
        command, step = line.split()
        if command == "save":
            trainer.save_when_possible(int(step))
        elif command == "begin":
            while (slot := trainer.client.claim(int(step))) is None:
                time.sleep(0.01)
            assert trainer.arena is not None
            half = trainer.arena.view(slot * trainer.slot_bytes, trainer.slot_bytes // 2)
            half[:] = 0xAA
        else:
            trainer.hears("committed", int(step))
        print("done", flush=True)


if __name__ == "__main__":
    main()
