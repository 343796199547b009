"""The exporter of a node, on a real board, real events and real files and sockets."""

from __future__ import annotations

import os
import socket
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.config.spec import PrometheusSpec
from hpckit.events.event_log import EventLog, read_events
from hpckit.exporter.exporter import STALE_S, Exporter, file_of, publish, remove_stale
from hpckit.exporter.exposition import CONTENT_TYPE
from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerPhase
from hpckit.rundir.directory import RunDir
from hpckit.trainer.torchrun.free_port import free_port
from tests.unit.hpckit.exporter.test_exposition import series
from tests.unit.hpckit.specs_and_processes import until

NOBODY = PrometheusSpec(folder=None, port=None, address="127.0.0.1", every_s=0.02)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "gpt-1")
    found.path.mkdir()
    with EventLog(found.events) as events:
        events.emit_kind("training_started", step=0, world_size=1)
        events.emit_kind("step", step=5, loss=2.5)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "textfiles").mkdir()
    return tmp_path / "textfiles"


@contextmanager
def exporter(spec: PrometheusSpec, run: RunDir, node: int = 0) -> Iterator[Exporter]:
    it = Exporter(spec, run, node)
    try:
        yield it
    finally:
        it.close()


def names(page: str) -> set[str]:
    return {name for name, _ in series(page)}


def test_a_file_is_kept_up_and_goes_with_its_agent(run: RunDir, folder: Path) -> None:
    board, path = HeartbeatTable.create(1)
    HeartbeatTable.attach(path, 1).report(0, WorkerPhase.TRAINING, 6, 0)
    spec = replace(NOBODY, folder=str(folder))
    before = os.umask(0o077)
    try:
        with exporter(spec, run) as it:
            it.watch(board.slots, "cpu", is_first=True)
            file = folder / "hpckit-gpt-1-n0.prom"
            until(lambda: file.exists() and "hpckit_worker_step" in file.read_text())
            assert stat.S_IMODE(file.stat().st_mode) == 0o644, "node_exporter is another user"
            assert {"hpckit_loss", "hpckit_checkpoint_lag_seconds"} <= names(file.read_text())
            with EventLog(run.events) as events:
                events.emit_kind("step", step=7, loss=1.5)
            until(lambda: 'hpckit_loss{run="gpt-1"} 1.5' in file.read_text())
            it.rest()
            until(lambda: "hpckit_worker_step" not in file.read_text())
            assert "hpckit_loss" in file.read_text()
    finally:
        os.umask(before)
    until(lambda: list(folder.iterdir()) == [])  # an agent does not wait long for a slow disk


def test_one_node_alone_tells_what_is_of_the_run(run: RunDir) -> None:
    board, path = HeartbeatTable.create(2)
    worker = HeartbeatTable.attach(path, 2)
    worker.report_memory(1, 4096)
    worker.report(1, WorkerPhase.TRAINING, 6, 0)
    with exporter(NOBODY, run, node=1) as it:
        assert it.page() == ""
        it.watch(board.slots, "cuda", is_first=False)
        of_workers = {
            *("hpckit_worker_step", "hpckit_worker_heartbeat_age_seconds"),
            "hpckit_worker_gpu_memory_peak_bytes",
        }
        assert names(it.page()) == of_workers
        it.watch(board.slots, "cuda", is_first=True)
        assert names(it.page()) > of_workers
        it.watch(board.slots, "cuda", is_first=False)
        assert names(it.page()) == of_workers


def test_it_answers_on_its_address_until_it_is_closed(run: RunDir) -> None:
    spec = replace(NOBODY, port=free_port())
    url = f"http://127.0.0.1:{spec.port}"
    with exporter(spec, run) as it:
        it.watch(tuple, "cpu", is_first=True)
        until(lambda: answers(f"{url}/metrics"))
        with urllib.request.urlopen(f"{url}/metrics?a=b", timeout=30) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert "hpckit_loss" in names(answer.read().decode())
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/etc/passwd", timeout=30)
    assert not answers(f"{url}/metrics")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=30):
            return True
    except OSError:
        return False


def test_what_keeps_it_from_telling_is_said_once_and_no_more(run: RunDir, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spec = replace(NOBODY, folder=str(folder / "none"), port=taken.getsockname()[1])
        with exporter(spec, run):

            def said() -> list[str]:
                return [e["what"] for e in read_events(run.events) if e.kind == "degraded"]

            until(lambda: len(said()) == 2)
    assert sorted(what.partition(":")[0] for what in said()) == [
        "cannot serve metrics at 127.0.0.1",
        f"cannot write metrics in {folder / 'none'}",
    ]


def test_files_of_agents_that_were_killed_are_removed(folder: Path) -> None:
    old, new = file_of(folder, "old", 0), file_of(folder, "new", 0)
    cut_short = folder / ".hpckit-old-n0.prom.1234"
    others = folder / "hpckit.prom.sh"
    for path in (old, new, cut_short, others):
        publish(path, "")
        age_s = 0 if path == new else STALE_S + 60
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age_s))
    remove_stale(folder)
    assert {*folder.iterdir()} == {new, others}


def test_a_name_of_any_run_makes_a_plain_file_name(folder: Path) -> None:
    assert file_of(folder, "a b/ü\n", 3).name == "hpckit-a_b___-n3.prom"
