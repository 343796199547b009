"""What a supervisor costs, by the number of nodes: processor time, memory, files and delays.

    python -m benchmarks.scale.many_agents [--nodes 10 30 100 300 1000 2000] [--seconds 10]

The supervisor is the real one, in a process of its own with a limit of 1,024 open files, as a login
shell has. Another process simulates the agents (`benchmarks.scale.simulated_agents`), so that its
time is not counted; the delays are those of both. Each size goes through the same run: all agents
start and meet at the rendezvous store; the generation is watched for some heartbeats; the ranks
hang and are examined, eight of each node; a node is lost, and a second generation starts on all
nodes; and the supervisor is asked to stop. File calls are those by which the supervisor opens,
makes, renames, removes or lists something in the directory of the run, which is on a shared file
system. The slope is the exponent of growth between the last size and the first of at least 30
nodes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import psutil

from benchmarks.common.number_arguments import positive_int
from benchmarks.common.scratch import scratch
from benchmarks.scale.growth_table import show_growth
from benchmarks.scale.simulated_agents import RANKS, SimulatedAgents
from hpckit.config.spec_parser import dump_spec
from hpckit.rundir.directory import RunDir
from hpckit.submit.compose import compose_spec
from hpckit.supervisor import job_resources
from hpckit.supervisor.agents.agent_launch import LocalNodes
from hpckit.supervisor.supervisor import supervise
from hpckit.system.child_processes import Process, spawn_piped

SOFT_LIMIT = 1024
"""Open files that a login shell allows."""
_FILE_CALLS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}


class SharedCount(Protocol):
    """A number that two processes share."""

    value: int


def run_directory(folder: Path, nodes: int) -> RunDir:
    """Returns a run of so many simulated nodes, with one submission whose code is this checkout."""
    changes = [f"launch.nodes={nodes}", f"launch.nproc_per_node={RANKS}", "cluster.device=cpu"]
    changes += [f"train.global_batch={nodes * RANKS}"]
    run = RunDir(folder / f"run{nodes}")
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(compose_spec([*changes, "data.shards=/data/shards"])))
    run.code(1).symlink_to(Path(__file__).resolve().parents[2])
    return run


def supervise_simulated(
    run: str, announcements: Connection, file_calls: SharedCount, soft_limit: int
) -> None:
    """Runs the supervisor of a run, whose agents another process simulates."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard))

    class SimulatedNodes(LocalNodes):
        """Nodes whose agents are simulated."""

        def start_agent(self, node: int) -> Process:
            output = self.logs.start_log(node)
            process = spawn_piped(["sleep", "infinity"], os.environ, output, is_written_to=True)
            announcements.send((node, process.pid))
            return process

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FILE_CALLS and str(arguments[0]).startswith(run):
            file_calls.value += 1

    sys.addaudithook(count)
    with mock.patch.object(job_resources, "LocalNodes", SimulatedNodes):
        supervise(run, 1, ())


@contextmanager
def supervised(
    run: RunDir, soft_limit: int = SOFT_LIMIT
) -> Iterator[tuple[multiprocessing.process.BaseProcess, SimulatedAgents, SharedCount]]:
    """Yields a supervisor's process, its agents, and the number of its file calls."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    file_calls: SharedCount = context.RawValue("q", 0)
    arguments = (str(run.path), there, file_calls, soft_limit)
    process = context.Process(target=supervise_simulated, args=arguments, daemon=True)
    process.start()
    there.close()
    agents = SimulatedAgents(here, run.name)
    try:
        yield process, agents, file_calls
    finally:
        process.kill()
        process.join()
        agents.close()


class _Meter:
    """Measures processor time, elapsed time and file calls of a supervisor, by phase."""

    def __init__(self, pid: int, file_calls: SharedCount) -> None:
        self._process, self._file_calls = psutil.Process(pid), file_calls
        self.found: dict[str, float] = {}

    def _now(self) -> tuple[float, float, int]:
        times = self._process.cpu_times()
        return times.user + times.system, time.monotonic(), self._file_calls.value

    @contextmanager
    def of(self, phase: str, each: float = 1.0) -> Iterator[None]:
        """Measures what happens inside, divided by `each`."""
        before = self._now()
        yield
        cpu, elapsed, files = (b - a for a, b in zip(before, self._now(), strict=True))
        self.found[f"{phase}: processor s"] = cpu / each
        self.found[f"{phase}: s"] = elapsed / each
        self.found[f"{phase}: file calls"] = files / each
        print(f"{phase}: {elapsed:.1f} s, {cpu:.2f} s of the processor", file=sys.stderr)

    def memory(self) -> None:
        self.found["memory, MB"] = self._process.memory_info().rss / 1e6
        self.found["open files"] = self._process.num_fds()


def measured(folder: Path, nodes: int, seconds: int) -> dict[str, float]:
    """Returns what a run of so many nodes costs."""
    run = run_directory(folder, nodes)
    with supervised(run) as (process, agents, file_calls):
        assert process.pid is not None
        agents.until(lambda: len(agents) > 0)
        meter = _Meter(process.pid, file_calls)
        with meter.of("agents started"):
            agents.until(lambda: agents.received["start"] == nodes)
        with meter.of("rendezvous"):
            agents.until(lambda: agents.met[1] == nodes)
        end_s = time.monotonic() + seconds
        with meter.of("watched, each s", seconds):
            agents.until(lambda: time.monotonic() > end_s)
        meter.memory()
        agents.report_hang(0)
        with meter.of("hang examined"):
            agents.until(lambda: agents.received["finding"] == nodes)
        agents.lose(nodes - 1)
        with meter.of("lost node to second generation"):
            agents.until(lambda: agents.met[2] == nodes)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        with meter.of("order to all"):
            agents.until(lambda: agents.received["ask"] == nodes)
        agents.until(lambda: not process.is_alive())
        assert process.exitcode == 0, f"the supervisor ended with {process.exitcode}"
    meter.found["files of the run"] = sum(
        1 for path in run.path.rglob("*") if not path.is_symlink()
    )
    meter.found["events, bytes"] = run.events.stat().st_size
    return meter.found


def _text(name: str, value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--nodes", type=positive_int, nargs="+", default=[10, 30, 100, 300, 1000, 2000]
    )
    parser.add_argument(
        "--seconds", type=positive_int, default=10, help="of the watched generation"
    )
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with scratch() as folder:
        found = [measured(folder, nodes, asked.seconds) for nodes in asked.nodes]
    show_growth(asked.nodes, found, _text, 120)


if __name__ == "__main__":
    main()
