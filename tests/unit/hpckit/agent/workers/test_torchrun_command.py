"""The arguments of a node's torchrun, word for word."""

from __future__ import annotations

from pathlib import Path

from hpckit.agent.workers.torchrun_command import (
    FORKING,
    PLAIN,
    Rendezvous,
    torchrun_arguments,
    torchrun_command,
    torchrun_variables,
)
from hpckit.ipc.process_environment import NodeEnvironment
from hpckit.rundir.directory import RunDir
from tests.unit.hpckit.specs_and_processes import make_spec

AT = NodeEnvironment(RunDir(Path("/runs/gpt-12345678")), 2, generation=3, node=1, nodes=4)


def test_golden_arguments() -> None:
    spec = make_spec({"launch.nproc_per_node": 2, "retry.max_restarts": 5})
    assert torchrun_arguments(spec, AT, Rendezvous("10.0.0.1", 29511, "secret", "10.0.0.7", 2)) == [
        "--nnodes=4",
        "--nproc-per-node=2",
        "--max-restarts=5",
        "--monitor-interval=0.1",
        "--signals-to-handle=SIGINT",
        "--rdzv-backend=hpckit",
        "--rdzv-endpoint=10.0.0.1:29511",
        "--rdzv-id=gpt-12345678-g3",
        "--rdzv-conf=place=2,join_timeout=600",
        "--local-addr=10.0.0.7",
        "--log-dir=/runs/gpt-12345678/logs/g003/n1/torchrun",
        "-m",
        "hpckit.trainer.worker",
    ]


def rendezvous_of(at: NodeEnvironment) -> list[str]:
    command = torchrun_arguments(make_spec(), at, Rendezvous("h", 1, "t", "a", 0))
    return [word for word in command if word.startswith("--rdzv")]


def test_the_nodes_of_a_generation_meet_and_those_of_another_do_not() -> None:
    beside = NodeEnvironment(AT.run, 2, generation=3, node=0, nodes=4)
    later = NodeEnvironment(AT.run, 2, generation=4, node=1, nodes=4)
    assert rendezvous_of(beside) == rendezvous_of(AT)
    assert rendezvous_of(later) != rendezvous_of(AT)


def test_workers_do_not_share_the_rendezvous_store() -> None:
    variables = torchrun_variables(threads=3)
    assert variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert variables["OMP_NUM_THREADS"] == "3"


def test_workers_are_forks_or_programs_of_their_own() -> None:
    meet = Rendezvous("h", 1, "t", "a", 0)
    for preload, program in ((True, FORKING), (False, PLAIN)):
        spec = make_spec({"launch.preload": preload})
        command = torchrun_command(spec, AT, meet)
        assert command == [*program, *torchrun_arguments(spec, AT, meet)]
