"""Runs to which most of what a page can show has happened, with names and numbers as long as they
are on a large cluster."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpckit.rundir.directory import RunDir
from hpckit.rundir.fork_record import ForkRecord, write_fork
from tests.unit.hpckit.report.sample_runs import submitted, write

LAST = 1_200_000
"""The last step; each record is of as many steps as make it `RECORDS`."""
RECORDS = 240
EVERY = LAST // RECORDS
_STEP_S = 0.75
_ENDS = (
    (60, "preempted", "its nodes were needed by job 1234567"),
    (110, "infra", "node gpu-a100-rack17-node042 was lost: its agent did not answer for 60 s"),
    (
        111,
        "hang",
        "ranks made no progress for 600 s in all_reduce #5123 of tensor_parallel_3",
    ),
    (170, "time_limit", "its job was about to reach its time limit"),
)
_EVALUATIONS = (60, 120, 180, 230)


def eventful(path: Path, seed: int = 1, fork: ForkRecord | None = None) -> RunDir:
    """A run that was interrupted, healed, evaluated and slowed down, and reached its last step.

    Args:
        fork: where it was forked from; its records begin at that step.
    """
    run = submitted(path, {"train.steps": LAST})
    if fork is not None:
        write_fork(run, fork)
    first = 0 if fork is None else fork.step // EVERY
    write(run, *_events(random.Random(seed), first))
    for record in _EVALUATIONS:
        if record > first:
            _evaluate(run, record * EVERY, 2.0 + 3.0 / record)
    verdict = {"kind": "done", "reason": "reached the last step", "final": True, "generation": 5}
    run.verdict.write_text(json.dumps({**verdict, "time": _time(RECORDS) + 60, "submission": 1}))
    return run


def died(path: Path) -> RunDir:
    """A program whose supervisor was killed; it reports steps and samples, and nothing else."""
    run = submitted(path, command="program")
    of = {"generation": 1, "attempt": 0}
    write(
        run,
        {"time": 1000.0, "kind": "run_started", "steps": None, "hosts": ["n1", "n2"]},
        {"time": 1001.0, "kind": "generation_started", "generation": 1, "nodes": 2, "from_step": 0},
        {
            "time": 1009.0,
            "kind": "training_started",
            **of,
            "step": 0,
            "world_size": 8,
            "samples": None,
        },
        *(
            {
                **{"time": 1010.0 + n, "kind": "step", **of, "step": n, "step_s": 1.0},
                **{"loss": 3.0 / n, "samples_per_s": 812.0 + n},
            }
            for n in range(1, 30)
        ),
    )
    return run


def _time(record: float) -> float:
    """When a record is written, in seconds since the epoch."""
    return 1.7e9 + record * EVERY * _STEP_S


def _events(chance: random.Random, first: int) -> Iterator[Mapping[str, Any]]:
    now, generation, at = _time(first) - 300, 1, first
    yield {"time": now, "kind": "run_started", "steps": LAST, "hosts": ["n1"], "job": "1234567"}
    for end, verdict, reason in (*_ENDS, (RECORDS, "done", "reached the last step")):
        if end <= first:
            continue
        of = {"generation": generation, "attempt": 0}
        start = {**of, "step": at * EVERY, "world_size": 1024, "samples": None, "restore_s": 42.0}
        nodes = {"generation": generation, "nodes": 128, "from_step": at * EVERY}
        yield {"time": now + 10, "kind": "generation_started", **nodes}
        yield {"time": now + 290, "kind": "training_started", **start}
        for record in range(at + 1, end + 1):
            now = _time(record) + 600 * generation
            yield from _record(chance, record, now, of)
        saved = max(0, end - 3) * EVERY
        is_last = end == RECORDS
        told = {"verdict": verdict, "reason": reason, "final": is_last, "saved_step": saved}
        now += 45
        yield {"time": now, "kind": "generation_ended", **told, "step": end * EVERY, **nodes}
        at, generation = max(first, end - 3), generation + 1
    yield {"time": now + 10, "kind": "run_ended", "verdict": "done", "status": 0}


def _record(
    chance: random.Random, record: int, now: float, of: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    step = record * EVERY
    loss = 2.0 + 9.0 * math.exp(-record / 12) + chance.gauss(0, 0.08)
    spike = 40.0 if record in (80, 81, 200) else 0.0
    phases = {"data_wait_s": 0.07, "forward_s": 0.2, "backward_s": 0.4, "optimizer_s": 0.05}
    phases |= {"checkpoint_stall_s": 0.01, "validation_s": 0.015, "other_s": 0.005}
    speeds = {"tokens_per_s": chance.gauss(5.4e6, 1e5), "mfu": 0.43, "peak_memory_bytes": 7e10}
    seen = {"loss": loss + spike, "grad_norm": 0.8 + abs(chance.gauss(0, 0.2)) + 3 * spike}
    rate = {"lr": 3e-4 * min(1.0, record / 10) * (1 - 0.9 * record / RECORDS)}
    read = {"data_hits": 3.0, "data_misses": 1.0, "data_bypasses": 0.0, "data_errors": 0.0}
    about = {"time": now, "kind": "step", **of, "step": step, "step_s": _STEP_S}
    yield {**about, **phases, **speeds, **seen, **rate, **read}
    more = {"time": now + 1, **of, "step": step}
    if record % 20 == 0:
        yield {**more, "kind": "validated", "val_loss": loss + 0.1, "seconds": 8.0}
        sizes = {"bytes": 10**12, "new_bytes": 7 * 10**11, "seconds": 95.0}
        name = f"{step:012d}-0123456789abcdef"
        yield {**more, "kind": "checkpoint_committed", "id": name, **sizes}
    where = {"first_position": step * 1024, "end_position": (step + 2) * 1024}
    if record == 81:
        found = {"first_step": step - 1, "what": "loss 42.1, 40 deviations above the median"}
        yield {**more, "kind": "spike", **found, **where, "is_left_out": True}
    if record == 200:
        what = "gradient norm 121 is 48.3 deviations above the median of 0.94"
        yield {**more, "kind": "update_skipped", "what": what, "is_skipped": True, **where}
    if record == 111:
        text = (
            "1,023 ranks wait in all_reduce #5123 of tensor_parallel_3; rank 61 on "
            "gpu-a100-rack17-node042 is in dataloader.next, /home/someone/project/data/load.py:88"
        )
        about_it = {"cause": "stuck", "culprits": [61], "hosts": ["gpu-a100-rack17-node042"]}
        counts = {"waiting": 1023, "examined": 1024, "seconds": 12.0, "snapshots": "hang.json"}
        yield {**more, "kind": "hang_explained", **about_it, **counts, "text": text}
    if record == 150:
        what = "https://example.org/alerts: " + "x" * 90
        yield {**more, "kind": "degraded", "what": what}


def _evaluate(run: RunDir, step: int, loss: float) -> None:
    name = f"{step:012d}-0123456789abcdef"
    folder = run.evaluation(name)
    folder.mkdir(parents=True)
    begun = {"step": step, "id": name, "host": "n9", "pid": 7, "nproc": 1}
    ended = {"step": step, "id": name, "seconds": 95.0, "eval_loss": loss, "eval_hellaswag": 0.4}
    lines = [
        {"time": _time(step / EVERY) + 100, "kind": "evaluation_started", **begun},
        {"time": _time(step / EVERY) + 195, "kind": "evaluation_ended", **ended},
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "events.jsonl").write_text(text)
