"""The programs of checkpointing/examples, run, killed and run again."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

import psutil

from checkpointing.format.values.json_values import Json
from checkpointing.store.catalog import newest_first
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.store import Store
from tests.effort import EFFORT
from tests.forkserver import WITH_IMPORTS
from tests.integration.examples import forking_server
from tests.integration.service.running_services import REPOSITORY, pid_of

_WITH_STARTUP = os.pathsep.join([str(REPOSITORY / "tests/startup"), str(REPOSITORY)])
PATIENCE_S = 180.0
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")


@dataclass(frozen=True)
class Ran:
    """What an example has said: the loss of each step, to the last bit."""

    losses: dict[int, str]
    output: str


def run(
    example: str,
    root: Path,
    *arguments: object,
    launcher: Sequence[str] = (),
    kill_at: int | None = None,
) -> Ran:
    """Run it to its end, or until it says the loss of a step: then all its processes are killed,
    and the node's checkpoint service is not."""
    command = [sys.executable, *launcher, "-m", f"checkpointing.examples.{example}"]
    process = subprocess.Popen(
        [*command, "--root", str(root), *map(str, arguments)],
        cwd=root.parent,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        ran = _read(process.stdout, kill_at)
    finally:
        kill(process.pid)
        process.stdout.close()
        status = process.wait()
    return _as_due(ran, status, kill_at)


class ForkedProgram:
    """A module whose runs begin with its imports done: see `forking_server`."""

    def __init__(self, module: str, *imports: str) -> None:
        self._lock = Lock()
        self._server = subprocess.Popen(
            [sys.executable, "-m", forking_server.__name__, module, *imports],
            cwd=REPOSITORY,
            env=_environment() | {"PYTHONPATH": _WITH_STARTUP} | WITH_IMPORTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(
        self,
        arguments: Sequence[str],
        folder: Path,
        ranks: int | None = None,
        kill_at: int | None = None,
    ) -> Ran:
        """Run it in a folder on so many ranks, to its end or until it is killed.

        Args:
            ranks: None: alone, as a program that no launcher has started.
        """
        output = folder / f"output-{secrets.token_hex(4)}"
        os.mkfifo(output)
        order = {"arguments": arguments, "ranks": ranks, "output": str(output)}
        pid = self._ask(**order, cwd=str(folder), env=_environment())
        try:
            with output.open() as stream:
                ran = _read(stream, kill_at)
        finally:
            kill(pid)
            status = self._ask(ended=pid)
        return _as_due(ran, status, kill_at)

    def close(self) -> None:
        self._server.communicate()

    def _ask(self, **order: object) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with self._lock:
            self._server.stdin.write(json.dumps(order) + "\n")
            self._server.stdin.flush()
            return int(self._server.stdout.readline())


class ForkedExample(ForkedProgram):
    """An example of `checkpointing.examples`."""

    def __init__(self, example: str) -> None:
        super().__init__(f"checkpointing.examples.{example}")

    def run(
        self, root: Path, *arguments: object, ranks: int | None = None, kill_at: int | None = None
    ) -> Ran:
        """As `run`, on so many ranks."""
        words = ["--root", str(root), *map(str, arguments)]
        return self.read(words, root.parent, ranks, kill_at)


@contextmanager
def forked(example: str) -> Iterator[ForkedExample]:
    """It can be run within the block."""
    found = ForkedExample(example)
    try:
        yield found
    finally:
        found.close()


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}


def _read(output: Iterable[str], kill_at: int | None) -> Ran:
    """What is said up to a step."""
    losses, lines = dict[int, str](), list[str]()
    for line in output:
        lines.append(line)
        match line.split():
            case ["step", step, "loss", loss] if step.isdigit():
                losses[int(step)] = loss
                if int(step) == kill_at:
                    break
    return Ran(losses, "".join(lines))


def _as_due(ran: Ran, status: int, kill_at: int | None) -> Ran:
    """What has ended as it was to end."""
    assert status == (0 if kill_at is None else -9), ran.output
    assert kill_at is None or kill_at in ran.losses, ran.output
    return ran


@contextmanager
def beside(run: Callable[[], Ran]) -> Iterator[Future[Ran]]:
    """A run to its end, while the block runs."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(run)


def kill(pid: int) -> None:
    """A program and what it has started, but the checkpoint service."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGSTOP)  # or quick steps go on until its processes are found
    try:
        top = psutil.Process(pid)
        found = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in found:
        try:
            if "checkpointing.service" not in process.cmdline():
                process.kill()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue


def kill_service(root: Path, run: str, durable: int = 0) -> None:
    """What was staged and is not durable yet is lost with it.

    Args:
        durable: the step of which at least a checkpoint is awaited before; 0: none is.
    """
    deadline = time.monotonic() + PATIENCE_S
    while durable and max(steps_kept(root, run), default=0) < durable:
        assert time.monotonic() < deadline, f"no checkpoint of step {durable} was committed"
        time.sleep(0.05)
    os.kill(pid_of(root, run), 9)


def newest(root: Path, run: str) -> tuple[int, dict[str, bytes], dict[str, Json]]:
    """Step, tensors and values of the newest checkpoint."""
    store = Store.open(root)
    try:
        found = newest_first(store, run)[0]
        checkpoint = Checkpoint(store, found.stored)
        tensors = {name: checkpoint.read(name).tobytes() for name in checkpoint.tensors()}
        return found.stored.save.step, tensors, checkpoint.values()
    finally:
        store.close()


def steps_kept(root: Path, run: str) -> list[int]:
    """Steps of the readable checkpoints, the newest first."""
    store = Store.open(root)
    try:
        return [found.stored.save.step for found in newest_first(store, run)]
    finally:
        store.close()


def assert_same_end(root: Path, reference: Path, run: str) -> None:
    """Both have come to the same step, with the same bits in all tensors."""
    step, tensors, _ = newest(root, run)
    expected_step, expected, _ = newest(reference, run)
    assert step == expected_step
    assert tensors.keys() == expected.keys()
    assert [name for name in tensors if tensors[name] != expected[name]] == []


def assert_killed_it_goes_on(name: str, tmp_path: Path) -> None:
    """An example, killed twice, once with its service, ends as one that was not, which with an
    effort above 1 is no fork, but a program that imports its framework."""
    reference, root = tmp_path / "reference", tmp_path / "root"
    example = f"{name}_trainer"
    with ExitStack() as stack:
        forks = stack.enter_context(forked(example))
        whole_run = (
            partial(run, example, reference) if EFFORT > 1 else partial(forks.run, reference)
        )
        finished = stack.enter_context(beside(whole_run))
        first = forks.run(root, kill_at=17)
        second = forks.run(root, kill_at=45)
        kill_service(root, name, durable=min(second.losses) - 1)
        third = forks.run(root)
        whole = finished.result()
    assert sorted(whole.losses) == list(range(1, 81))
    for part in (second, third):
        # after a save, all of which are of multiples of 7; a program on a busy machine may skip one
        # while another is under way, or come to the next one before it is killed
        assert min(part.losses) in range(8, 81, 7)
    for part in (first, second, third):
        assert part.losses.items() <= whole.losses.items()
    assert_same_end(root, reference, name)
