"""A drill of hangs: real ranks hang in a known way, are examined as an agent does it, and what is
said of them is compared with what they did.

`python -m tests.faults.hang_drill --rounds 3` prints a table of all kinds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from dataclasses import dataclass
from itertools import count
from multiprocessing.context import ForkServerContext
from pathlib import Path

from hpckit.agent.hangs.hang_detection import hung_workers
from hpckit.agent.hangs.hang_examination import HangExamination
from hpckit.agent.hangs.snapshot_collection import SnapshotCollector
from hpckit.config.spec import HangSpec
from hpckit.hangs.culprit_search import HangCause, find_culprits
from hpckit.hangs.hang_snapshot import load_snapshot
from hpckit.hangs.hang_words import describe_finding
from hpckit.ipc.heartbeat_table import Heartbeat, HeartbeatTable
from hpckit.ipc.snapshot_exchange import SnapshotExchange
from tests.faults.hanging_ranks import (
    KINDS,
    STEPS,
    WORLD,
    can_cut,
    cut_network,
    killed_at_end,
    run_rank,
)
from tests.unit.hpckit.specs_and_processes import until

LIMITS = HangSpec(
    step_s=2.5, first_step_s=None, start_s=None, validate_s=None, save_s=None, output_s=None
)


@dataclass(frozen=True)
class Drilled:
    """What was said of a hang."""

    kind: str
    culprit: int
    cause: HangCause
    named: tuple[int, ...]
    text: str
    seconds: float
    """From the alarm of the watch to the sentence."""

    @property
    def problem(self) -> str | None:
        """Why it is wrong; None: it is right."""
        kind = KINDS[self.kind]
        right = () if kind.cause is HangCause.TRANSFER else (self.culprit,)
        if self.cause is not kind.cause:
            return f"cause {self.cause}, not {kind.cause}: {self.text}"
        if self.named != right:
            return f"names {self.named}, not {right}: {self.text}"
        missing = [part for part in kind.says if part not in self.text]
        return f"does not say {missing}: {self.text}" if missing else None


def drill(kind: str, culprit: int, tmp: Path, server: ForkServerContext) -> Drilled:
    """Has ranks hang in this way, and returns what was said of them."""
    table, path = HeartbeatTable.create(WORLD)
    exchange = SnapshotExchange(WORLD)
    reads = count(1)

    def slots_of_agent() -> list[Heartbeat]:
        """The heartbeats; ranks that are slow have finished their step at the second reading,
        however busy the machine is."""
        if next(reads) == 2 and kind == "slow":
            (tmp / "go").touch()
            until(lambda: all(slot.step >= STEPS for slot in table.slots()))
        return table.slots()

    collector = SnapshotCollector(exchange, 0, tmp, slots_of_agent)
    processes = [
        server.Process(target=run_rank, args=(rank, kind, culprit, tmp, path, exchange.address))
        for rank in range(WORLD)
    ]
    with killed_at_end(processes, tmp):
        for process in processes:
            process.start()
        if kind == "cut":
            until(lambda: all((tmp / f"steps.{rank}").exists() for rank in range(WORLD)))
            cut_network(tmp)
        else:
            name = "waits" if kind in ("skipped", "shapes") else "hangs"
            until(lambda: any(tmp.glob(f"{name}.*")))
        others = set(range(WORLD)) - {culprit}
        until(lambda: others <= hung_workers(table.slots(), time.monotonic(), LIMITS).keys())
        slots = table.slots()
        pids = {slots[rank].pid for rank in range(WORLD)}
        begun_s = time.monotonic()
        examination = HangExamination(collector.collect)
        examination.raise_alarm(pids, pids, 0, 1.0)
        messages = examination.messages()
        while not any(one["kind"] == "examined" for one in messages):
            if kind == "slow" and all(exchange.answer(rank, 1) for rank in range(WORLD)):
                (tmp / "go").touch()
            time.sleep(0.02)
            messages += examination.messages()
        wire = json.loads(json.dumps(messages[-1]["ranks"]))
        finding = find_culprits([load_snapshot(values) for values in wire], WORLD)
        text = describe_finding(finding)
        seconds = time.monotonic() - begun_s
    exchange.close()
    return Drilled(kind, culprit, finding.cause, finding.culprits, text, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    options = parser.parse_args()
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.faults.hanging_ranks"])
    draw, wrong = random.Random(options.seed), 0
    kinds = [k for k in options.kind or KINDS if k != "cut" or can_cut()]
    for kind in kinds:
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                found = drill(kind, draw.randrange(WORLD), Path(folder), server)
            wrong += found.problem is not None
            mark = "wrong" if found.problem else "right"
            print(f"{kind:10} {mark} {found.seconds:5.1f} s  rank {found.culprit}: {found.text}")
            if found.problem:
                print("    ", found.problem, flush=True)
    print(f"{wrong} of {len(kinds) * options.rounds} wrong")


if __name__ == "__main__":
    main()
