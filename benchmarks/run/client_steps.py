"""How long the calls of `hpckit.client` take in each step of a program.

    python -m benchmarks.run.client_steps [--steps 200000] [--rounds 5]

One process is the rank of a program. In each round it calls `client.step` with two metrics and
`client.should_stop` as often as there are steps, and an empty loop is subtracted. The heartbeat
table is a real one; events go to a file on this machine's disk, at most one per second. Times are
processor time, so that other processes of the machine do not count.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.common.number_arguments import positive_int
from hpckit import client
from hpckit.ipc.heartbeat_table import HeartbeatTable
from hpckit.ipc.process_environment import NodeEnvironment, worker_variables
from hpckit.rundir.directory import RunDir

_RANKS = {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1"}


def main() -> None:
    """Measures and prints the microseconds of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=positive_int, default=200_000)
    parser.add_argument("--rounds", type=positive_int, default=5)
    args = parser.parse_args()
    _, path = HeartbeatTable.create(1)
    with tempfile.TemporaryDirectory() as folder:
        at = NodeEnvironment(RunDir(Path(folder)), submission=1, generation=1, node=0, nodes=1)
        os.environ |= at.to_env() | worker_variables("cpu", path) | _RANKS
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
        found = [_round(args.steps, at=i * args.steps) for i in range(args.rounds)]
    print(f"{median(found):.1f} microseconds a step (median of {args.rounds} rounds)")


def _round(steps: int, at: int) -> float:
    """Returns the microseconds of processor time of a step."""
    begun_s = time.process_time()
    for step in range(at, at + steps):
        client.step(step + 1, loss=1.0, samples=8)
        client.should_stop()
    called_s = time.process_time()
    for _ in range(at, at + steps):
        pass
    return 1e6 * (2 * called_s - begun_s - time.process_time()) / steps


if __name__ == "__main__":
    main()
