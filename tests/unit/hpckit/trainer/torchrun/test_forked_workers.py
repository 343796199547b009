"""Processes whose forks are the workers use no GPU; where one has, workers are no forks."""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.launcher.api import LaunchConfig

from hpckit.agent.workers.forkserver_client import ForkedTorchrun, ForkServerClient, start_server
from hpckit.agent.workers.torchrun_command import torchrun_variables
from hpckit.system.child_processes import kill_all
from hpckit.trainer.torchrun import first_device_use, forked_workers, torchrun_config
from hpckit.trainer.torchrun.first_device_use import CALLS, FirstDeviceUse, is_driver_initialised
from tests.forkserver import WITH_IMPORTS
from tests.unit.hpckit.trainer.torchrun import spied_fork_server
from tests.unit.hpckit.trainer.torchrun.spied_fork_server import USES, WORKER

ONE_NODE = [
    *("--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
    *("--rdzv-id=spied", "--signals-to-handle=SIGINT", "-m", "hpckit.trainer.worker"),
]
SPIED = (sys.executable, "-m", spied_fork_server.__name__)


def spied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **variables: str) -> list[str]:
    """What the spy has said of a server and a torchrun of two workers."""
    monkeypatch.setattr("hpckit.agent.workers.forkserver_client.SERVER", SPIED)
    told, output = tmp_path / "spy.txt", tmp_path / "torchrun.log"
    env = os.environ | torchrun_variables(1) | {"SPY_FILE": str(told)} | variables
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        server = start_server(env, theirs, (signal.SIGTERM,), threads=1, at_once=True)
        agent = ForkServerClient(ours, (signal.SIGTERM,))
        try:
            torchrun = agent.begin([f"--log-dir={tmp_path}", *ONE_NODE], env, output)
            assert isinstance(torchrun, ForkedTorchrun)
            assert torchrun.wait() == 0, output.read_text()
        finally:
            agent.end()
            kill_all([server])
    return told.read_text().splitlines()


def test_nothing_uses_a_gpu_before_the_workers_are_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = spied(tmp_path, monkeypatch)
    assert [line for line in lines if line.startswith(USES)] == []
    assert lines == [f"{WORKER}bad fork False, drivers []"] * 2


def test_the_spy_would_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a build for CUDA, the fork is found to be bad, too."""
    lines = spied(tmp_path, monkeypatch, SPY_BAIT="1", **WITH_IMPORTS)
    assert "torch.cuda.is_available" in lines[0]
    is_bad = torch.version.cuda is not None
    assert lines[-1].startswith(f"{WORKER}bad fork {is_bad}")


def test_no_binding_to_numa_nodes_is_chosen_and_a_stated_one_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> bool:
        raise AssertionError("CUDA was asked")

    monkeypatch.setattr(torch.cuda, "is_available", refuse)
    monkeypatch.setattr(torch.accelerator, "is_available", refuse)
    assert torchrun_config.launch_config(ONE_NODE).numa_options is None
    if not any(field.name == "numa_options" for field in fields(LaunchConfig)):
        return  # before torch 2.9
    stated = torchrun_config.launch_config(["--numa-binding=socket", *ONE_NODE]).numa_options
    assert stated is not None
    assert stated.affinity_mode == "socket"


def test_signals_are_left_alone_where_torchrun_has_no_option_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As before torch 2.10."""
    monkeypatch.setattr(torchrun_config, "fields", lambda _: [])
    monkeypatch.setattr(api, "signal", signal)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert torchrun_config.known_arguments(ONE_NODE) == [
            word for word in ONE_NODE if not word.startswith("--signals")
        ]
        for number in before:
            vars(api)["signal"].signal(number, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is before[signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert vars(api)["signal"].Signals(15) is signal.SIGTERM
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])


def functions() -> SimpleNamespace:
    flag = {"_cuda_isInBadFork": lambda: False}
    return SimpleNamespace(_cuda_init=lambda: 1, _cuda_getDeviceCount=lambda: 8, **flag)


def test_the_first_use_is_kept_with_the_calls_that_led_to_it() -> None:
    module = functions()
    real = module._cuda_init
    first = FirstDeviceUse(module)
    module._cuda_isInBadFork()
    assert not first.call
    assert module._cuda_getDeviceCount() == 8
    assert module._cuda_init() == 1
    told = str(first.call)
    assert told.startswith("torch._C._cuda_getDeviceCount, called by ")
    assert told.endswith("test_the_first_use_is_kept_with_the_calls_that_led_to_it")
    assert "test_forked_workers.py" in told
    first.stop()
    assert module._cuda_init is real


def test_what_is_recorded_is_there_in_builds_for_cuda() -> None:
    missing = [name for name in CALLS if not hasattr(torch._C, name)]
    assert missing == [] or torch.version.cuda is None


def test_a_fork_that_may_not_use_cuda_says_who_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    monkeypatch.setattr(
        first_device_use.FIRST_USE, "call", "torch._C._cuda_init, called by x.py:3 f"
    )
    assert forked_workers.why_unusable("cpu") == (
        "CUDA was used before the fork: torch._C._cuda_init, called by x.py:3 f"
    )


class Driver:
    """As NVIDIA's driver, when `cuInit` was called or not."""

    def __init__(self, answer: int) -> None:
        self.answer = answer

    def __call__(self, name: str, mode: int) -> Driver:
        assert (name, mode) == ("libcuda.so.1", os.RTLD_NOLOAD)
        return self

    def cuDeviceGetCount(self, count: object) -> int:  # noqa: N802
        return self.answer


def test_a_driver_that_something_else_has_initialised_is_seen() -> None:
    assert not is_driver_initialised(), "there is none on the machines of the tests, or it is idle"
    assert not is_driver_initialised(Driver(3))
    assert is_driver_initialised(Driver(0))
    assert is_driver_initialised(Driver(100)), "it was initialised, and there is no GPU"


def test_only_workers_on_gpus_mind_a_driver_that_was_initialised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.setattr(first_device_use, "is_driver_initialised", lambda: True)
    first = FirstDeviceUse(functions())
    monkeypatch.setattr(forked_workers, "FIRST_USE", first)
    first.check_driver()
    assert forked_workers.why_unusable("cpu") is None
    why = forked_workers.why_unusable("cuda")
    assert why is not None
    assert "NVIDIA's driver was initialised" in why
