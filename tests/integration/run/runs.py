"""Starts real runs, watches them through their events, and reads what they left behind."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import psutil

from hpckit.events.event_log import Event, EventTail, read_events
from hpckit.report.history import History, build_history
from hpckit.rundir.code_snapshot import newest_snapshot
from hpckit.rundir.code_snapshot.snapshot import find_project, take_snapshot
from hpckit.rundir.directory import RunDir
from hpckit.rundir.sample_ledger import LedgerEntry, kept_entries, read_ledgers
from hpckit.system.atomic_files import read_json
from hpckit.system.child_processes import strays
from tests.integration.checkpoint.store_damage import committed_in
from tests.stopped_processes import stop

REPO = Path(__file__).resolve().parents[3]
STEPS = 60
SMALL = (
    "name=t",
    "model=gpt_nano",
    "data=shards",
    f"train.steps={STEPS}",
    "train.global_batch=8",
    "train.micro_batch=4",
    "train.log_every=1",
    "optim.warmup_steps=5",
    "launch.nodes=2",
    "launch.threads_per_worker=1",
    "checkpoint.every_steps=10",
    "debug.ledger=true",
    "cluster.device=cpu",
)
ALONE = ("launch.nodes=1",)
"""For runs of which no node but the first matters: each costs some seconds of a processor."""
ON_ONE_NODE = ("launch.nodes=1", "launch.nproc_per_node=2")
"""For runs of two ranks that may be on one node: the losses are the same, bit for bit."""
PACED = "entry=hpckit.drill.workload:main"
"""For runs that are to be there for long: a step per 0.2 seconds, most of which is slept."""
DRILLED = "entry=tests.integration.run.drilled_training:of_text"
"""For runs with `debug.drill.preempt_at`: they are preempted right after those steps."""
PATIENCE_S = 500.0


class Followed:
    """The events of a run, each of which is read once."""

    def __init__(self, path: Path) -> None:
        self._tail, self._told = EventTail(path), list[Event]()

    def events(self) -> list[Event]:
        """All that there are by now, in the order of their time."""
        self._told += self._tail.read()
        self._told.sort(key=lambda event: event.time)
        return self._told


@dataclass
class Started:
    """A `launch.py` or `hpckit resume` under way."""

    process: subprocess.Popen[str]
    root: Path
    _followed: Followed | None = None

    @property
    def run(self) -> RunDir:
        """The run's directory, once there is one."""
        return RunDir(eventually(lambda: next(self.root.glob("t-*"), None)))

    def events(self) -> list[Event]:
        self._followed = self._followed or Followed(self.run.events)
        return self._followed.events()

    def wait_for(self, kind: str, count: int = 1, **fields: object) -> Event:
        """The `count`-th event of `kind` with these fields."""

        def look() -> Event | None:
            found = [e for e in self.events() if _matches(e, kind, fields)]
            return found[count - 1] if len(found) >= count else None

        return eventually(look, self.process)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Until `holds` says so."""
        eventually(lambda: holds() or None, self.process)

    def wait_for_step(self, step: int) -> Event:
        """The first record of a step at or after `step`."""

        def look() -> Event | None:
            done = (e for e in self.events() if e.kind == "step" and e["step"] >= step)
            return next(done, None)

        return eventually(look, self.process)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The ranks make no step within the block, however long a busy machine takes for it."""
        with ranks_paused(e for e in self.events() if e.kind == "worker_started"):
            yield

    def wait_until_ended(self) -> None:
        """Until no process of the run is left, of which each ends after its parent."""
        eventually(lambda: strays(self.run.path) == [] or None)

    def finish(self) -> tuple[int, str]:
        """Exit status and output, once it has ended."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output


def command(root: Path, shards: Path, *overrides: str) -> list[str]:
    """`launch.py` for a small run; later overrides win."""
    _share_code(root)
    places = (f"root={root}", f"data.shards={shards}")
    return [sys.executable, str(REPO / "launch.py"), *SMALL, *places, *overrides]


def _share_code(root: Path) -> None:
    """Have runs below `root` share the files of a snapshot of this checkout, as after another run
    there. To copy them takes longer than all else that a run does before it starts."""
    root.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        newest_snapshot._link(root, REPO).symlink_to(_submission())


@cache
def _submission() -> Path:
    """The folder of a submission that has nothing but the snapshot."""
    folder = Path(tempfile.mkdtemp(prefix="hpckit-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    submission = folder / "run" / "submissions" / "001"
    submission.mkdir(parents=True)
    take_snapshot(find_project(REPO), submission / "code")
    return submission


@contextmanager
def started(root: Path, arguments: list[str], cwd: Path = REPO) -> Iterator[Started]:
    """Start something; whatever is left of its runs at the end is killed."""
    root.mkdir(exist_ok=True)
    process = subprocess.Popen(
        arguments,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Started(process, root)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
        end_leftovers(root)


def complete(root: Path, arguments: list[str], cwd: Path = REPO) -> tuple[int, str]:
    """Start something and wait for its end: exit status and output."""
    with started(root, arguments, cwd) as it:
        return it.finish()


def end_leftovers(root: Path, names: str = "t-*") -> None:
    """Kill what still runs for the runs below `root`."""
    for path in root.glob(names):
        for event in read_events(RunDir(path).events):
            if event.kind == "run_started":
                _kill_teller(event)
        for process in strays(path):
            kill(process.pid)


def _kill_teller(event: Event) -> None:
    """The process that told of itself: by now, another one may have its number."""
    if is_that_process(event["pid"], event.time):
        kill(event["pid"])


def is_that_process(pid: int, time_s: float) -> bool:
    """Whether the process that had this number at that time is still there, and not another one."""
    try:
        return psutil.Process(pid).create_time() <= time_s
    except psutil.NoSuchProcess:
        return False


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> bool:
    """Send a signal; False where the process is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class Watched(Protocol):
    """A run under way, on this machine or on a cluster of it."""

    @property
    def run(self) -> RunDir: ...

    def wait_for(self, kind: str, count: int = 1, **fields: object) -> Event: ...

    def wait_for_step(self, step: int) -> object: ...

    def paused(self) -> AbstractContextManager[None]: ...


def await_commit(it: Watched, step: int) -> None:
    """Wait until the checkpoint of a step is committed, for which the ranks, whose steps take their
    time, make only a few of them."""
    it.wait_for("checkpoint_staged", step=step)
    it.wait_for_step(step + 2)  # which no rank begins before it has staged that one
    with it.paused():
        store = it.run.checkpoints
        eventually(lambda: any(one.step == step for one in committed_in(store)) or None)
    it.wait_for("checkpoint_committed", step=step)  # as rank 0 has heard from its service


@contextmanager
def ranks_paused(started: Iterable[Event]) -> Iterator[None]:
    """The ranks, by their `worker_started` events in order, make no step within the block. None of
    them holds a lock that others wait for, as that of the events."""
    newest = {event["rank"]: event["pid"] for event in started}
    for pid in newest.values():
        stop(pid)
        while holds_lock(pid):
            kill(pid, signal.SIGCONT)
            time.sleep(0.01)
            stop(pid)
    try:
        yield
    finally:
        for pid in newest.values():
            kill(pid, signal.SIGCONT)


def holds_lock(pid: int) -> bool:
    """Whether the process has locked a file by fcntl(2), alone or with others."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1] == "POSIX" and words[4] == str(pid) for words in lines)


def throttle(pid: int, log: Path, end: str) -> None:
    """Let a process run for a fiftieth of the time until its log has the text `end`, however late
    a busy machine stops it each time."""
    ran_s = 0.01
    while end not in log.read_text() and kill(pid, signal.SIGSTOP):
        time.sleep(50 * ran_s)
        begun_s = time.monotonic()
        if not kill(pid, signal.SIGCONT):
            return
        time.sleep(0.01)
        ran_s = time.monotonic() - begun_s


T = TypeVar("T")


def eventually(look: Callable[[], T | None], process: subprocess.Popen[str] | None = None) -> T:
    """What `look` finds, soon after there is something."""
    deadline = time.monotonic() + PATIENCE_S
    while (looks := time.monotonic()) < deadline:
        ended = process is not None and process.poll() is not None
        found = look()
        if found is not None:
            return found
        if ended:
            raise AssertionError("it ended before that happened")
        time.sleep(pause_s(time.monotonic() - looks))
    raise AssertionError("it did not happen in time")


def pause_s(took_s: float) -> float:
    """Seconds until a question is asked again whose answer took so many: questions that start
    commands or go through all processes would take the processors from what is waited for."""
    return min(1.0, max(0.05, 8 * took_s))


def history(run: RunDir) -> History:
    return build_history(read_events(run.events))


def losses(run: RunDir) -> dict[int, float]:
    """Loss of each kept step."""
    return {step: event["loss"] for step, event in sorted(history(run).kept.items())}


def samples_by_step(run: RunDir) -> dict[int, list[str]]:
    """Sorted keys of the samples of each kept step, over all ranks."""
    keys: dict[int, list[str]] = {}
    for entry in kept(run):
        keys.setdefault(entry.step, []).extend(entry.keys)
    return {step: sorted(found) for step, found in keys.items()}


def kept(run: RunDir) -> list[LedgerEntry]:
    return kept_entries(read_ledgers(run.ledger), STEPS)


def assert_same_run(run: RunDir, reference: RunDir) -> None:
    """Bit for bit the same losses, the same samples at each step, and nothing left running."""
    assert losses(run) == losses(reference)
    assert list(losses(run)) == list(range(1, STEPS + 1))
    assert samples_by_step(run) == samples_by_step(reference)
    assert read_json(run.verdict)["kind"] == "done"
    assert strays(run.path) == []


def _matches(event: Event, kind: str, fields: dict[str, object]) -> bool:
    return event.kind == kind and all(event.get(k) == v for k, v in fields.items())
