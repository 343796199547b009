"""The process that evaluates one checkpoint of a run, or several in turn: on a node of its own by
Slurm, in the background of this machine, or by hand (`hpckit eval`).

It may be killed at any time and started again. The metrics are written to the store first and to
the events of the evaluation then, so that a start after an end without metrics measures them again,
with the same result. The model is in a process of its own (`evaluation_worker`), which this one
limits in time.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from checkpointing import CheckpointError, Store, mark_best
from checkpointing.store.catalog import CatalogEntry, committed
from checkpointing.store.pins_and_labels import marked_metrics, marks, put_metrics
from checkpointing.store.sessions.session import leased
from hpckit.config.rules.validation_and_evaluation import EVAL_PREFIX, METRIC_NAME, best_policy
from hpckit.config.spec import EvalSpec, RunSpec
from hpckit.config.spec_parser import read_spec
from hpckit.evaluation.evaluation_jobs import job_fields
from hpckit.events.event_log import EventLog
from hpckit.events.schema import EvaluationEnded, EvaluationStarted
from hpckit.report.evaluation.evaluation_records import (
    EVENTS,
    LOCK,
    LOG,
    attempts_of,
    metrics_of,
    read_own,
)
from hpckit.rundir.directory import RunDir, checkpoint_root, run_name
from hpckit.rundir.lock import RunHeldError, RunLock
from hpckit.system.atomic_files import read_json
from hpckit.system.child_processes import spawn
from hpckit.text.slurm_times import limit_seconds

log = logging.getLogger(__name__)

WORKER = "hpckit.evaluation.evaluation_worker"
_MARGIN_S = 30.0
"""Seconds before the time limit of a job at which its evaluation is ended, so that it says why; at
most a tenth of the limit."""

_MOST_OF_ERROR = 4000
"""Characters of an error of the user's function that an event has; the log has all."""


class EvaluationError(RuntimeError):
    """Raised if a checkpoint cannot be evaluated; the message says why."""


@dataclass(frozen=True)
class EvaluationRequest:
    """One evaluation."""

    run: RunDir
    submission: int
    """Whose spec and code are used."""
    spec: RunSpec
    id: str
    """Of the checkpoint."""
    code: tuple[Path, ...] = ()
    """Folders whose modules come before those of the code snapshot."""
    is_added: bool = False
    """Whether metrics that the checkpoint has from another function stay."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluates the checkpoints that the command line names, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hpckit.evaluation.evaluation_job")
    parser.add_argument("run", type=Path)
    parser.add_argument("submission", type=int)
    parser.add_argument("ids", nargs="+")
    parser.add_argument("--background", action="store_true")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run = RunDir(given.run)
    spec = read_spec(run.spec(given.submission))
    signal.signal(signal.SIGTERM, _leave)
    if given.background:
        os.nice(spec.eval.nice)
    failed = 0
    with _turn(run, is_alone=given.background):
        for id_ in ids_of_task(given.ids, os.environ):
            try:
                evaluate(EvaluationRequest(run, given.submission, spec, id_))
            except (EvaluationError, RunHeldError) as error:
                log.error("%s: %s", id_, error)
                failed += 1
    return 1 if failed else 0


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends this process by an exception, so that what it has started and written is removed."""
    raise SystemExit(128 + number)


def ids_of_task(ids: Sequence[str], env: Mapping[str, str]) -> Sequence[str]:
    """Returns the ids that this process evaluates: that of its number, if it is a task of an
    array. Pure."""
    task = env.get("SLURM_ARRAY_TASK_ID")
    return [ids[int(task)]] if task is not None and len(ids) > 1 else ids


@contextmanager
def _turn(run: RunDir, *, is_alone: bool) -> Iterator[None]:
    """Waits until no other process evaluates the run on this machine, if it has to be alone."""
    if not is_alone:
        yield
        return
    run.evaluations.mkdir(exist_ok=True)
    handle = os.open(run.evaluations / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def evaluate(request: EvaluationRequest, *, again: bool = False) -> dict[str, float]:
    """Evaluates a checkpoint and returns its metrics by name, with the prefix.

    Args:
        again: whether one that was evaluated before is evaluated again.

    Raises:
        EvaluationError: it cannot be, or its metrics cannot be stored.
        RunHeldError: another process evaluates it.
    """
    folder = request.run.evaluation(request.id)
    folder.mkdir(parents=True, exist_ok=True)
    with RunLock(folder / LOCK, "evaluation"):
        ends = [end for _, end in attempts_of(read_own(folder)) if end and end.error is None]
        if ends and not again:
            return metrics_of(ends[-1])
        with EventLog(folder / EVENTS, submission=request.submission) as events:
            return _evaluate(request, folder, events)


def _evaluate(request: EvaluationRequest, folder: Path, events: EventLog) -> dict[str, float]:
    id_, begun_s = request.id, time.monotonic()
    step = int(id_.partition("-")[0])
    events.emit(
        EvaluationStarted(
            step=step,
            id=id_,
            host=socket.gethostname(),
            pid=os.getpid(),
            nproc=request.spec.eval.nproc_per_node,
            **job_fields(os.environ),  # type: ignore[arg-type]
        )
    )
    try:
        metrics = _measure_and_store(request, folder)
    except (EvaluationError, CheckpointError, OSError) as error:
        why = " ".join(str(error).split())[:_MOST_OF_ERROR] or type(error).__name__
        seconds = time.monotonic() - begun_s
        events.emit(EvaluationEnded(step=step, id=id_, seconds=seconds, error=why))
        raise EvaluationError(why) from error
    end: dict[str, Any] = {"step": step, "id": id_, "seconds": time.monotonic() - begun_s}
    events.emit_kind("evaluation_ended", **end, **metrics)
    return metrics


def _measure_and_store(request: EvaluationRequest, folder: Path) -> dict[str, float]:
    spec, name = request.spec, run_name(request.spec)
    try:
        store = Store.open(checkpoint_root(spec, request.run))
    except FileNotFoundError as error:
        raise EvaluationError(f"there is no checkpoint store: {error}") from None
    try:
        found = find_checkpoint(store, name, request.id)
        with leased(store, found.stored, log.warning):
            metrics = checked_metrics(_measure(request, folder), spec.eval)
            if request.is_added:
                earlier = marked_metrics(marks(store, name).values()).get(request.id, {})
                metrics = {**earlier, **metrics}
            entry = spec.eval.entry or ""
            put_metrics(store, found.stored.save, metrics, f"evaluated by {entry}")
        if (policy := best_policy(spec.eval)) is not None:
            mark_best(store, name, policy)
    finally:
        store.close()
    return metrics


def find_checkpoint(store: Store, run: str, id_: str) -> CatalogEntry:
    """Returns the committed checkpoint of this id.

    Raises:
        EvaluationError: there is none.
    """
    for found in committed(store, run)[0]:
        if found.stored.save.id == id_:
            return found
    raise EvaluationError(f"{store.url} has no checkpoint {id_} of run {run} (any more)")


def _measure(request: EvaluationRequest, folder: Path) -> Any:
    """Returns what the function of the user has returned, in a process of its own."""
    number, limit = request.spec.eval.nproc_per_node, request.spec.eval.time_limit
    # its weights may be large, so they are removed here, also if the process was killed
    with tempfile.TemporaryDirectory(prefix="hpckit-eval-", ignore_cleanup_errors=True) as scratch:
        out = Path(scratch, "result.json")
        words = ["-m", WORKER, str(request.run.path), str(request.submission), request.id]
        words += [str(out), request.spec.eval.entry or ""]
        if number > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone"]
            words = [*torchrun, "--nproc-per-node", str(number), *words]
        env = worker_environment(request, os.environ)
        process = spawn([sys.executable, "-u", *words], env, folder / LOG)
        status: int | None = None
        try:
            status = process.wait(worker_limit_s(limit))
        except subprocess.TimeoutExpired:
            if not out.exists():
                raise EvaluationError(f"it took longer than eval.time_limit={limit}") from None
            log.warning("%s: the function has returned, but its process did not end", request.id)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        result = read_json(out)
    if not isinstance(result, dict):
        raise EvaluationError(f"its process ended with status {status}; see {folder / LOG}")
    if (error := result.get("error")) is not None:
        raise EvaluationError(f"{error}; see {folder / LOG}")
    return result.get("metrics")


def worker_limit_s(limit: str) -> float:
    """Returns the seconds after which an evaluation with this time limit is ended. Pure."""
    seconds = float(limit_seconds(limit))
    return max(1.0, seconds - min(_MARGIN_S, seconds / 10))


def checked_metrics(found: Any, spec: EvalSpec) -> dict[str, float]:
    """Returns the metrics that a function has returned, with the prefix. Pure.

    Raises:
        EvaluationError: they are no finite numbers by name, or one is missing.
    """
    entry = spec.entry
    if not isinstance(found, dict) or not found:
        raise EvaluationError(
            f"{entry} must return a mapping from names of metrics to numbers, as "
            f"{{'accuracy': 0.5}}; got {json.dumps(found)[:200]}"
        )
    for name, value in found.items():
        if not METRIC_NAME.fullmatch(name):
            raise EvaluationError(
                f"{entry} returned a metric named {name!r}; names are letters, digits and _ . / @ -"
            )
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= sys.float_info.max:  # an integer may be above it
            raise EvaluationError(
                f"{entry} returned {name}={value!r}, which is not a finite number"
            )
    if spec.metric is not None and spec.metric not in found:
        names = ", ".join(sorted(found))
        raise EvaluationError(f"{entry} returned no {spec.metric} (eval.metric), but {names}")
    return {f"{EVAL_PREFIX}{name}": float(value) for name, value in found.items()}


def worker_environment(request: EvaluationRequest, env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the process that has the model, from that of this one. Pure."""
    slurm = request.spec.cluster.slurm
    found = {**env, "PYTHONUNBUFFERED": "1"}
    if slurm is not None:
        found |= {name: str(value) for name, value in slurm.env.items()}
    if request.code:
        before = [found["PYTHONPATH"]] if found.get("PYTHONPATH") else []
        found["PYTHONPATH"] = os.pathsep.join([*map(str, request.code), *before])
        # or the working directory, which may be a changed copy of the project, would come first
        found["PYTHONSAFEPATH"] = "1"
    return found


def with_entry(spec: RunSpec, entry: str | None) -> RunSpec:
    """Returns a spec with another function that evaluates, if one is given. It may have no
    `eval.metric` then."""
    return (
        spec if entry is None else replace(spec, eval=replace(spec.eval, entry=entry, metric=None))
    )


if __name__ == "__main__":
    sys.exit(main())
