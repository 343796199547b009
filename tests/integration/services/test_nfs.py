"""A real NFS and its faults: what writers see is what its specification and its kernels say.

Every fault reaches the writer at fsync, after a write() that went well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.services import nfs
from tests.services.fixtures import RunInNfs
from tests.services.processes import MissingToolError, ServiceError

SCENARIOS = [sys.executable, "-m", "tests.services.nfs_scenarios"]


def wrote(*, fsync: str) -> list[list[str]]:
    return [["write", "ok"], ["fsync", fsync], ["close", "ok"]]


def play(
    run_in_nfs: RunInNfs, out: Path, version: str, options: str, names: Sequence[str]
) -> object:
    finished = run_in_nfs(
        [*SCENARIOS, *names], out=out, version=version, options=options, size_mib=40, timeout_s=300
    )
    assert finished.returncode == 0, finished.output
    assert finished.seconds.keys() == {"boot", "server", "command"}
    return json.loads(finished.output)


def test_version_4_2_hard(run_in_nfs: RunInNfs, tmp_path: Path) -> None:
    names = ("full", "quota", "two_clients", "outage", "removed", "broken_disk")
    assert play(run_in_nfs, tmp_path, "4.2", "hard", names) == {
        "full": wrote(fsync="ENOSPC"),
        "quota": wrote(fsync="EDQUOT") + wrote(fsync="ok"),
        "two_clients": [["read there", "1"], ["create there", "EEXIST"], ["devices", "two"]],
        "outage": [["fsync", "ok"], ["server", "back"], ["bytes", "1048576"]],
        "removed": wrote(fsync="ok"),  # the server keeps open what its clients have open
        "broken_disk": wrote(fsync="EIO"),
    }


def test_version_3_soft(run_in_nfs: RunInNfs, tmp_path: Path) -> None:
    names = ("full", "quota", "removed", "soft_outage", "broken_disk")
    assert play(run_in_nfs, tmp_path, "3", "soft,timeo=20,retrans=1", names) == {
        "full": wrote(fsync="ENOSPC"),
        "quota": wrote(fsync="EDQUOT") + wrote(fsync="ok"),
        "removed": wrote(fsync="ESTALE"),
        "soft_outage": [["fsync", "EIO"]],
        "broken_disk": wrote(fsync="EIO"),
    }


def test_a_script_of_the_project_runs_in_its_environment(
    run_in_nfs: RunInNfs, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys; from pathlib import Path; import numpy, tests.services\n"
        "Path('/mnt/nfs/a').write_bytes(b'on nfs')\n"
        "Path('/mnt/out/copy').write_bytes(Path('/mnt/nfs/a').read_bytes())\n"
        "assert not os.access(__file__, os.W_OK), 'the host can be written'\n"
        "print(os.environ['GIVEN'], file=sys.stderr)\n"
        "sys.exit(7)\n"
    )
    finished = run_in_nfs(script, out=out, size_mib=20, env={"GIVEN": "to it"})
    assert (finished.returncode, finished.output) == (7, "to it\n")
    assert (out / "copy").read_bytes() == b"on nfs"


def test_a_script_that_does_not_end_is_ended(run_in_nfs: RunInNfs, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"user-mode Linux not ready after 4 s"):
        run_in_nfs(
            [sys.executable, "-c", "import time; time.sleep(600)"], out=tmp_path, timeout_s=4
        )


def test_a_guest_that_fails_says_why(run_in_nfs: RunInNfs, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="'vers=5,hard'"):
        run_in_nfs(["true"], out=tmp_path, version="5", size_mib=20)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.services.processes._PATH", "/nonexistent")
    with pytest.raises(MissingToolError, match=r"apt-get install .*nfs-common .*user-mode-linux"):
        nfs.run_in_nfs(["true"], out=tmp_path)
