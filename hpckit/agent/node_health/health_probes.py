"""Probes of this node, which run in parallel, each with a time limit.

A dead mount or a driver that hangs does not hang the agent: a program is killed, and a thread that
waits for the kernel is abandoned and ends with this process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from checkpointing import local_folder
from hpckit.agent.device_assignment import visible_gpus
from hpckit.agent.node_health import nvidia
from hpckit.agent.node_health.health_rules import (
    Answer,
    NodeFacts,
    ProbeFault,
    ProgramOutput,
    problems,
    wanted_gpus,
)
from hpckit.config.entry_points import is_data_used
from hpckit.config.shard_places import training_places
from hpckit.config.spec import RunSpec
from hpckit.rundir.directory import RunDir, checkpoint_root
from hpckit.system.dataset_folder import data_folder, nearest

_KERNEL_LOG = ("dmesg",)


def start_health_check(spec: RunSpec, run: RunDir) -> Future[list[str]]:
    """Runs `node_problems` in a thread and returns its future."""
    found: Future[list[str]] = Future()

    def work() -> None:
        try:
            found.set_result(node_problems(spec, run))
        except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
            found.set_exception(error)

    threading.Thread(target=work, name="checkup", daemon=True).start()
    return found


def node_problems(spec: RunSpec, run: RunDir) -> list[str]:
    """Returns why this node is to be left out of the run, a line for each problem, after little
    more than `health.probe_s` seconds at most."""
    is_given = os.environ.get("CUDA_VISIBLE_DEVICES") is not None
    wanted = wanted_gpus(spec, visible_gpus(os.environ), is_given=is_given)
    return problems(probe_node(spec, run), wanted, spec.health)


def probe_node(spec: RunSpec, run: RunDir) -> NodeFacts:
    """Runs the probes of this node that `spec.health` asks for."""
    within_s = spec.health.probe_s
    tools = {name: partial(output, command, within_s) for name, command in _tools(spec).items()}
    free = {what: partial(free_bytes, path) for what, path in _disks(spec, run).items()}
    reached = _mounts(spec, run)
    answers = probe_in_parallel({**tools, **free, **reached}, within_s)
    return NodeFacts(
        gpus=answers.get("gpus"),
        rows=answers.get("rows"),
        kernel_log=answers.get("kernel_log"),
        free={what: answers[what] for what in free},
        reached={what: answers[what] for what in reached},
    )


def probe_in_parallel(probes: Mapping[str, Callable[[], Any]], within_s: float) -> dict[str, Any]:
    """Returns the result of each probe or a `ProbeFault`. A probe that is late is a fault, and is
    abandoned."""
    found: dict[str, Any] = {}

    def run(name: str, probe: Callable[[], Any]) -> None:
        try:
            found[name] = probe()
        except OSError as error:
            found[name] = ProbeFault(error.strerror or str(error))

    threads = {
        name: threading.Thread(target=run, args=(name, probe), name=name, daemon=True)
        for name, probe in probes.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + within_s
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    late = ProbeFault(f"no answer within {within_s:g} s")
    return {name: found.get(name, late) for name in probes}


def output(command: tuple[str, ...], within_s: float) -> Answer[ProgramOutput]:
    """Runs a program and returns its output, or None if it is not installed."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired:
        return ProbeFault(f"no answer within {within_s:g} s")
    return ProgramOutput(done.returncode, done.stdout, done.stderr)


def free_bytes(path: Path) -> int:
    """Returns the bytes that this user may still write below `path`, or below its nearest existing
    parent."""
    found = os.statvfs(nearest(path))
    return found.f_bavail * found.f_frsize


def read(folder: Path) -> None:
    """Checks that a folder can be read.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        next(entries, None)


def write(folder: Path) -> None:
    """Checks that a folder, or its nearest existing parent, can be written to.

    Raises:
        OSError: nothing can be written there.
    """
    with tempfile.TemporaryFile(prefix=".hpckit-", dir=nearest(folder)) as file:
        file.write(b"x")
        file.flush()


def _tools(spec: RunSpec) -> dict[str, tuple[str, ...]]:
    """Returns the commands to run. If Slurm gave the job no GPU, the GPUs of the node are not
    probed."""
    health, cluster = spec.health, spec.cluster
    is_given_none = cluster.kind == "slurm" and os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    if cluster.device == "cpu" or (is_given_none and cluster.device != "cuda"):
        return {}
    found: dict[str, tuple[str, ...]] = {}
    if health.gpus or health.ecc_errors is not None:
        found["gpus"] = nvidia.GPUS
    if health.gpus:
        found["rows"] = nvidia.ROWS
    if health.xids:
        found["kernel_log"] = _KERNEL_LOG
    return found


def _disks(spec: RunSpec, run: RunDir) -> dict[str, Path]:
    if spec.health.disk_free_gib is None:
        return {}
    # tempfile.gettempdir would write a file at this point
    places = [run.path, Path(os.environ.get("TMPDIR") or "/tmp")]
    if spec.cluster.slurm is not None and spec.cluster.slurm.scratch is not None:
        places.append(Path(spec.cluster.slurm.scratch))
    return {f"disk of {path}": path for path in places}


def _mounts(spec: RunSpec, run: RunDir) -> dict[str, Callable[[], None]]:
    if not spec.health.mounts:
        return {}
    found: dict[str, Callable[[], None]] = {f"write to {run.path}": partial(write, run.path)}
    store = local_folder(checkpoint_root(spec, run))
    if store is not None and not store.is_relative_to(run.path):
        found[f"write to {store}"] = partial(write, store)
    for shards in training_places(spec.data).values() if is_data_used(spec) else ():
        if (data := data_folder(shards)) is not None:
            found[f"read {data}"] = partial(read, data)
    return found
