"""A real run among other users: what it leaves is its user's alone whatever the umask, and what is
secret is in nothing that it writes, says, or is called."""

from __future__ import annotations

import logging
import os
import re
import stat
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from checkpointing import CheckpointError
from checkpointing.storage.backend_selection import open_storage
from data.errors import FetchError
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from hpckit.events.event_log import read_events
from hpckit.system.atomic_files import read_json
from tests.integration.run.runs import PACED, SMALL, command, complete

CANARY = "terce5yranac"[::-1]  # a run takes its project's files along, and so this one
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": f"{CANARY}-1",
    "AWS_SESSION_TOKEN": f"{CANARY}-2",
    "HF_TOKEN": f"{CANARY}-3",
    "WANDB_API_KEY": f"{CANARY}-4",
}
DEAD = "127.0.0.1:9"  # where nobody listens


@pytest.fixture
def short() -> Iterator[str]:
    """A folder whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def files(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from (p for p in folder.rglob("*") if not p.is_symlink() and not p.is_dir())


def content(path: Path) -> bytes:
    """What a file has, which a process that is about to end may remove."""
    with suppress(FileNotFoundError):
        return path.read_bytes() if path.is_file() else b""
    return b""


def command_lines() -> set[bytes]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.add(path.read_bytes())
        except OSError:
            continue
    return found


def test_a_run_under_an_open_umask_is_closed_and_says_no_secret(
    shards: Path, tmp_path: Path, short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    spool, cache = tmp_path / "spool", tmp_path / "cache"
    sockets = Path(short) / "sockets"
    monkeypatch.setenv("HPCKIT_RUNTIME_DIR", str(sockets))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = [*SMALL, "launch.nodes=1", "train.steps=20", "checkpoint.every_steps=3", PACED]
    words += [f"checkpoint.local={spool}", f"data.cache={cache}"]
    textfiles = tmp_path / "textfiles"
    textfiles.mkdir()
    words += [f"metrics.prometheus.folder={textfiles}", "metrics.prometheus.every_s=0.1"]
    words += [
        "metrics.mlflow.experiment=e",
        "metrics.wandb.project=p",
        "metrics.wandb.mode=offline",
    ]
    seen: set[bytes] = set()
    exported: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            seen.update(command_lines())
            for path in textfiles.glob("*.prom"):
                with suppress(FileNotFoundError):
                    exported.update(re.findall(r"^hpckit_\w+", path.read_text(), re.MULTILINE))

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = os.umask(0)
    try:
        status, output = complete(tmp_path / "runs", command(tmp_path / "runs", shards, *words))
    finally:
        os.umask(before)
        over.set()
        watcher.join()
    assert status == 0, output
    assert any(b"hpckit.agent.watchdog" in line for line in seen)
    assert not [line for line in seen if CANARY.encode() in line]
    assert CANARY not in output
    assert [p for p in files(tmp_path, sockets) if CANARY.encode() in content(p)] == []
    (run,) = (tmp_path / "runs").glob("t-*")
    private = [path for path in (run, sockets, spool, cache) if path.exists()]
    assert run in private
    assert sockets in private
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o700}
    assert {"hpckit_loss", "hpckit_worker_step"} <= exported
    assert list(textfiles.iterdir()) == []
    lacks = {e["tracker"] for e in read_events(run / "events.jsonl") if "undelivered" in e.kind}
    for tracker in {"wandb", "mlflow"} - lacks:  # they may be slower than so few steps
        assert read_json(run / "trackers" / f"{tracker}.json")["told"] == {"step": 20}
    pickles = list((run / "submitit").glob("*_submitted.pkl"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in pickles} == {0o600}


@pytest.mark.parametrize(
    "url",
    [
        f"http://me:{CANARY}@{DEAD}/a.tar?X-Amz-Signature={CANARY}",
        f"http://{CANARY}@{DEAD}/a.tar",
        f"https://{DEAD}/a.tar?sig={CANARY}&a=b",
        f"pipe:no-such-program -H 'Authorization: {CANARY}'",
        f"pipe:false {CANARY}",
        f"nosuch://me:{CANARY}@host/a",
    ],
)
def test_a_failed_read_says_no_secret(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(FetchError) as caught:
        Sources(retry=SourceRetryPolicy(budget_s=0.1), pipes="exec").read(url, 0, 10, None)
    assert_hushed(caught.value, caplog)


def test_a_failed_store_says_no_secret(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for options in (
        {"secret_access_key": f"{CANARY}-5", "access_key_id": "me"},
        {"secret_access_key": f"{CANARY}-5", "access_key_id": "me", "session_token": f"{CANARY}-6"},
    ):
        given = {"endpoint": f"http://{DEAD}", "region": "r", "budget_s": 0.1, **options}
        storage = open_storage("s3://bucket/x", options=given)
        with pytest.raises(CheckpointError) as caught:
            storage.get("a")
        assert CANARY not in repr(storage)
        assert_hushed(caught.value, caplog)


def assert_hushed(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """Also where it ends a program: with all that it came from."""
    said = "".join(traceback.format_exception(error)) + repr(error)
    said = "\n".join(line for line in said.splitlines() if "Sources(" not in line)
    assert CANARY not in said
    assert CANARY not in caplog.text
