"""The programs of checkpointing/examples, run, killed and run again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from checkpointing.format.values.json_values import Json
from checkpointing.store.catalog import newest_first
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.store import Store
from tests.integration.service.running_services import REPOSITORY, pid_of

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
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    losses, lines = dict[int, str](), list[str]()
    try:
        for line in process.stdout:
            lines.append(line)
            match line.split():
                case ["step", step, "loss", loss]:
                    losses[int(step)] = loss
                    if int(step) == kill_at:
                        break
    finally:
        kill(process.pid)
        process.stdout.close()
        status = process.wait()
    output = "".join(lines)
    assert status == (0 if kill_at is None else -9), output
    assert kill_at is None or kill_at in losses, output
    return Ran(losses, output)


@contextmanager
def beside(example: str, root: Path, *arguments: object, **options: Any) -> Iterator[Future[Ran]]:
    """The same, to its end, while the block runs."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(run, example, root, *arguments, **options)


def kill(pid: int) -> None:
    """A program and what it has started, but the checkpoint service."""
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


def kill_service(root: Path, run: str) -> None:
    """What was staged and is not durable yet is lost with it."""
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
    """An example, killed twice, once with its service, ends as one that was not."""
    reference, root = tmp_path / "reference", tmp_path / "root"
    with beside(f"{name}_trainer", reference) as finished:
        first = run(f"{name}_trainer", root, kill_at=17)
        second = run(f"{name}_trainer", root, kill_at=45)
        kill_service(root, name)
        third = run(f"{name}_trainer", root)
        whole = finished.result()
    assert sorted(whole.losses) == list(range(1, 81))
    assert min(second.losses) == 15
    assert min(third.losses) <= 43
    for part in (first, second, third):
        assert part.losses.items() <= whole.losses.items()
    assert_same_end(root, reference, name)
