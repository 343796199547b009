"""Runs of other users: only their own records are shown, and those that may not be read take
nothing away."""

from __future__ import annotations

import json
import os
import tempfile
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.cli.top import TopScreen
from hpckit.report.overview import Queue
from hpckit.report.page.run_family import read_family
from hpckit.report.terminal.top_view import ScreenSize
from hpckit.rundir.directory import RunDir
from hpckit.rundir.fork_record import ForkRecord, write_fork
from hpckit.serve import record_owners
from hpckit.serve.record_owners import foreign_record, open_record
from hpckit.serve.run_catalog import RunCatalog
from tests.unit.hpckit.report.sample_runs import Page, ran
from tests.unit.hpckit.serve.served_runs import ServedFolder

SECRET = "a text of the user of the server\n"
NAMES = ("mine", "parent", "hidden")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that is not of the user who owns the runs of these tests."""
    if os.getuid() != 0:
        return Path("/etc/hostname")
    path = tmp_path / "secret"
    path.write_text(SECRET)
    os.chown(path, 1, 1)
    return path


@pytest.fixture
def untrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the runs of these tests those of another user."""
    monkeypatch.setattr(record_owners, "_trusted_users", lambda: ())


@pytest.mark.usefixtures("untrusted")
@pytest.mark.parametrize(
    "name", ["logs/supervisor.log", "events.jsonl", "submissions/001/spec.yaml"]
)
def test_a_link_to_a_file_of_another_user_is_not_followed(
    name: str, tmp_path: Path, secret: Path
) -> None:
    run = ran(tmp_path / "runs" / "gpt-1")
    run.logs.mkdir()
    (run.logs / "supervisor.log").write_text("its log\n")
    site = ServedFolder(tmp_path / "runs", *[run] * 6).site()
    assert "its log" in site.page("runs/gpt-1/error.html", {}).text
    (run.path / name).unlink()
    (run.path / name).symlink_to(secret)
    for address in site.addresses():
        text = site.page(address, {}).text
        assert SECRET.strip() not in text
        if address.endswith(".html") and "gpt-1" in address:
            assert "not a record of the run" in Page(text).text
    with pytest.raises(PermissionError, match="not a file of the run's owner"):
        open_record(run, run.path / name)


@pytest.mark.usefixtures("untrusted")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    run = ran(tmp_path / "gpt-1")
    run.verdict.unlink()
    os.mkfifo(run.verdict)
    assert "neither a file nor a folder" in (foreign_record(run) or "")
    with pytest.raises(PermissionError):
        open_record(run, run.verdict)


def test_links_in_the_runs_of_the_user_of_the_server_are_followed(
    tmp_path: Path, secret: Path
) -> None:
    run = ran(tmp_path / "runs" / "gpt-1")
    run.logs.symlink_to(secret.parent)
    assert foreign_record(run) is None
    (tmp_path / "runs" / "linked").symlink_to(run.path)
    found = RunCatalog([], [tmp_path / "runs"]).read()
    assert [one.problem for one in found.runs.values()] == [None, None]


def _seen(root: Path) -> list[list[str]]:
    """The runs that commands tell of: those of `status` and `top`, and the family of one."""
    words = ["status", "--root", str(root), "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    screen = TopScreen(root)
    screen.look()
    state = screen.view(ScreenSize())
    shown = Console(file=StringIO(), width=80, height=24)
    shown.print(state)
    assert isinstance(shown.file, StringIO)
    listed = [name for name in NAMES if name in shown.file.getvalue()]
    status = [one["run"] for one in json.loads(done.stdout)["runs"]]
    family = read_family(RunDir(root / "mine"), Queue())
    related = [one.overview.run.name for one in family.runs]
    return [status, listed, related, [str(family.others)]]


@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root, to become another user")
def test_runs_of_others_that_may_not_be_read_are_left_out() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        mine, parent, hidden = (ran(root / name) for name in NAMES)
        for fork in (mine, hidden):
            write_fork(fork, ForkRecord("parent", str(parent.path), "/store", 3, "x"))
        assert _seen(root) == [
            ["hidden", "mine", "parent"],
            [*NAMES],
            ["parent", "hidden", "mine"],
            ["0"],
        ]
        hidden.path.chmod(0o700)
        parent.events.chmod(0o600)
        os.seteuid(65534)
        try:
            seen = _seen(root)
        finally:
            os.seteuid(0)
        assert seen == [["mine"], ["mine"], ["mine"], ["1"]]
