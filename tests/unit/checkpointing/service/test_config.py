from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.errors import ServiceError
from checkpointing.retention import Best, Buckets, Every, Last, Only, Unevaluated
from checkpointing.service.config import (
    Budget,
    Compress,
    ServiceConfig,
    absolute,
    dump,
    load,
    own_disk,
)

FULL = ServiceConfig(
    url="s3://bucket/x",
    run="r",
    options={"secret_access_key": "hidden", "timeout_s": 2.0},
    keep=(
        *(Last(3), Every(100), Best("loss"), Only(("model",), Last(2))),
        Unevaluated(50, 3600.0, "eval_"),
    ),
    compress=False,
    budget=Budget(cpu=3, nice=5, bytes_per_s=1e6, local_bytes=1 << 40),
    linger_s=1.0,
    drain_s=2.0,
    node="n",
    log="/tmp/log",
    local="/nvme/hpckit",
)


@pytest.mark.parametrize("config", [ServiceConfig(url="/x", run="r"), FULL])
def test_what_is_dumped_is_loaded(config: ServiceConfig) -> None:
    assert load(dump(config)) == config


def test_all_policies_can_be_sent() -> None:
    import checkpointing.service.config as module

    assert {Last, Every, Best, Buckets, Only, Unevaluated} == set(module._POLICIES.values())


def test_a_secret_is_in_what_is_sent_alone() -> None:
    assert "hidden" in dump(FULL)
    assert "hidden" not in repr(FULL)
    assert "hidden" not in str(FULL)


def test_an_option_that_is_no_plain_value_is_refused_without_being_told() -> None:
    class Secret:
        def __repr__(self) -> str:
            return "hidden"

    with pytest.raises(ServiceError, match="plain values") as caught:
        dump(ServiceConfig(url="x", run="r", options={"key": Secret()}))
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "x", "keep": [], "budget": {}}'])
def test_what_is_no_configuration(text: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        load(text)


def test_places_are_the_same_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/x")
    there = absolute(ServiceConfig(url="a/../store", run="r", log="log", local="disk"))
    assert (there.url, there.log) == (str(tmp_path / "store"), str(tmp_path / "log"))
    assert there.local == str(tmp_path / "disk")
    assert absolute(ServiceConfig(url="~/store", run="r")).url == "/home/x/store"
    for url in ("s3://bucket/x", "file:///x", "/x"):
        assert absolute(ServiceConfig(url=url, run="r")).url == url


@pytest.mark.parametrize("local", ["s3://bucket/x", "file:///x", ""])
def test_a_nodes_own_disk_is_no_url(local: str) -> None:
    with pytest.raises(ValueError, match="own disk"):
        own_disk(local)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cpu": 0}, "cpu"),
        ({"nice": 20}, "nice"),
        ({"nice": -1}, "nice"),
        ({"bytes_per_s": 0.0}, "bytes_per_s"),
        ({"cpus": (100_000,)}, "100000"),
        ({"local_bytes": 0}, "local_bytes"),
    ],
)
def test_budgets_that_cannot_be(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Budget(**wrong)  # type: ignore[arg-type]


def test_a_trainer_that_is_bound_to_one_core_gives_its_service_another() -> None:
    cores = sorted(os.sched_getaffinity(0))
    mine, other = cores[0], cores[-1]

    def bound() -> tuple[Budget, set[int]]:
        os.sched_setaffinity(0, {mine})
        return Budget(cpus=(other,)), os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as thread:
        budget, still = thread.submit(bound).result()
    assert budget.cpus == (other,)
    assert still == {mine}


def test_how_it_writes() -> None:
    options = FULL.writing()
    assert options.threads == 3
    assert json.loads(dump(FULL))["compress"] is False


@pytest.mark.parametrize(
    ("compress", "encodes", "only_if_slower"),
    [(True, True, False), ("auto", True, True), (False, False, False)],
)
def test_what_it_compresses(compress: Compress, encodes: bool, only_if_slower: bool) -> None:
    options = replace(FULL, compress=compress).writing()
    assert (options.encoder.encoder is not None) == encodes
    assert options.only_if_slower == only_if_slower
    assert load(dump(replace(FULL, compress=compress))).compress == compress
