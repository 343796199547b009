"""The store on a real NFS, of versions 3 and 4.2: processes that die, servers that go away or are
full, files that others take away, and two clients at once.

What happens inside is in tests/services/nfs_store_*.py, which assert what must hold; here is how
each scenario has to end.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.effort import EFFORT, some, times
from tests.services.fixtures import RunInNfs
from tests.services.nfs_store import RESULT
from tests.services.nfs_store_crash import VERSION

pytestmark = pytest.mark.timeout(1200 * EFFORT)
VERSIONS = ("3", "4.2")
IN_BOTH = (
    *("killed_at_changes", "seen_at_once", "races", "ends", "over_quota", "disk_full", "outage"),
    "export_made_anew",
)
"""Crashes, full disks, servers that go away, and what versions do differently: caches of attributes
and folders, exclusive creates, stale handles. Others are played in the second one, or by an effort
above 1 in both."""
in_one = pytest.mark.parametrize("output", some(["4.2"], ["3"]), indirect=True)
STEPS_OF_A_SAVE = {"leases/", "packs/", "parts/", "steps/"}
Result = Callable[[str], Any]


@pytest.fixture(scope="module", params=VERSIONS)
def output(
    request: pytest.FixtureRequest, run_in_nfs: RunInNfs, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """What the scenarios printed with a version of NFS: one boot for all."""
    version: str = request.param
    chosen = IN_BOTH if version == "3" and EFFORT <= 1 else ()
    command = [sys.executable, "-m", "tests.services.nfs_store", *chosen]
    out: Path = tmp_path_factory.mktemp(f"nfs-{version}")
    env = {VERSION: version, "HPCKIT_TEST_EFFORT": str(EFFORT)}
    finished = run_in_nfs(command, out=out, version=version, timeout_s=550 * EFFORT, env=env)
    assert finished.returncode == 0, finished.output
    return finished.output


@pytest.fixture
def result(output: str) -> Result:
    """Of a scenario, by name."""

    def find(name: str) -> Any:
        found = re.search(rf"^{RESULT} {name} \S+ (.*)$", output, re.MULTILINE)
        assert found, f"{name} did not end well:\n{output}"
        return json.loads(found[1])

    return find


def test_killed_at_any_change_of_the_store(result: Result) -> None:
    counts = result("killed_at_changes")
    assert counts["changes"] > 20
    assert counts["killed"] >= counts["changes"] // 4


@in_one
def test_killed_at_many_system_calls(result: Result) -> None:
    counts = result("killed_at_calls")
    assert counts["calls"] > 100
    assert counts["killed"] >= counts["calls"] // 40


def test_objects_of_another_client_are_seen_at_once(result: Result) -> None:
    assert set(result("seen_at_once").values()) == {0}


@in_one
def test_saves_of_another_client_are_seen_at_once(result: Result) -> None:
    assert result("saves_seen_at_once") == times(10)


@in_one
def test_ranks_on_two_clients_make_one_checkpoint(result: Result) -> None:
    assert result("ranks_on_two") == times(10) // 2


def test_one_of_all_clients_makes_an_object(result: Result) -> None:
    assert result("races") == times(10)


def test_a_save_is_committed_or_declared_dead(result: Result) -> None:
    outcomes = result("ends")
    assert sum(outcomes.values()) == times(10)
    assert all(outcomes.values()), f"only one of the two ever happened: {outcomes}"


@in_one
def test_saves_prunes_and_reads_on_two_clients(result: Result) -> None:
    assert all(result("storm").values())


@pytest.mark.parametrize(
    ("name", "number"), [("over_quota", "EDQUOT"), ("disk_full", "ENOSPC")], ids=["quota", "disk"]
)
def test_no_space_at_any_step_of_a_save(result: Result, name: str, number: str) -> None:
    # what fails is the flush of the object, and not its write
    assert result(name) == {step: [f"fsync {number}"] for step in STEPS_OF_A_SAVE}


def test_a_hard_mount_waits_for_its_server(result: Result) -> None:
    assert set(result("outage")["hard"].values()) == {"saved"}


def test_a_soft_mount_says_what_it_could_not_write(result: Result) -> None:
    ends = result("outage")["soft"]
    assert ends.pop("end") == "saved"  # only its lease stays
    failed = {point: end for point, end in ends.items() if end != "saved"}
    assert failed  # not all: a try may come late enough, and of version 4 a flush may wait
    for point, end in failed.items():
        assert re.match(rf"StoreError: (write|create) \S+/soft-{point}/\S+: given up after", end)
        assert "Input/output error" in end


@in_one
def test_reads_beside_changes_are_right_or_refused(result: Result) -> None:
    ends = result("reads_beside_changes")
    for when in ("open", "preadv"):
        assert "the pack does not exist" in ends[f"removed, {when}"]
        assert ends[f"same file, {when}"] == ends[f"folder, {when}"] == "read"
        assert "do not match their hash" in ends[f"other file, {when}"]


@in_one
def test_saves_beside_changes_come_to_a_good_end(result: Result) -> None:
    assert set(result("saves_beside_changes").values()) == {"saved"}


def test_an_export_made_anew_is_said_and_loses_nothing(result: Result) -> None:
    ends = result("export_made_anew")
    for name in ("save", "read", "afterwards"):
        assert ends[name].startswith("StoreError: ")
        assert "Stale file handle" in ends[name]
    assert {end for name, end in ends.items() if "mounted anew" in name} == {"saved"}


@in_one
def test_a_disk_that_breaks_is_said_and_loses_nothing(result: Result) -> None:
    ends = result("broken_disk")
    assert re.search(r"/packs/\S+: .*(Read-only file system|Input/output error)", ends["save"])
    assert (ends["read"], ends["mounted anew"]) == ("read", "saved")
