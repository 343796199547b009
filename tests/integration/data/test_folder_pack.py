"""Packing with real processes: two at once, and one that is killed half-way."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import data
from data import open_dataset, pack_folder

ROOT = Path(data.__file__).parents[1]

PACK = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from data import pack_folder

def progress(done, total):
    print(done, file=sys.stderr, flush=True)
    if "stop" in sys.argv and done >= 50:
        sys.stdin.read()    # waits here until it is killed

report = pack_folder(Path(sys.argv[1]), Path(sys.argv[2]), samples_per_shard=10, progress=progress)
print(json.dumps(asdict(report)))
"""


def packer(source: Path, out: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PACK, str(source), str(out), *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    for i in range(200):
        (folder / f"{i:03d}.txt").write_bytes(str(i).encode() * 1000)
    return folder


def kill_half_way(source: Path, out: Path) -> None:
    with packer(source, out, "stop") as process:
        assert process.stderr
        while process.stderr.readline() != "50\n":
            assert process.poll() is None
        assert not out.exists()
        process.send_signal(signal.SIGKILL)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_processes_pack_at_once(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    processes = [packer(source, out) for _ in range(2)]
    results = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    one, two = (json.loads(stdout) for stdout, _ in results)
    assert one == two
    assert len(open_dataset(out)) == one["samples"] == 200
    assert names(tmp_path) == ["out", "src"]


def test_two_processes_of_different_packs_do_not_mix(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_bytes(b"other")
    out = tmp_path / "out"
    processes = [packer(folder, out) for folder in (source, other)]
    errors = [process.communicate()[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 1], errors
    assert any("already contains another pack" in error for error in errors)
    assert len(open_dataset(out)) in (1, 200)
    assert names(tmp_path) == ["other", "out", "src"]


def test_a_killed_packer_leaves_nothing_visible_and_the_next_cleans_up(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    kill_half_way(source, out)
    assert not out.exists()
    assert len(names(tmp_path)) == 3  # the source, a lock, the debris
    report = pack_folder(source, out, samples_per_shard=10)
    assert len(open_dataset(out)) == report.samples == 200
    assert names(tmp_path) == ["out", "src"]


def test_a_waiting_packer_takes_over_from_a_killed_one(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = packer(source, out, "stop")
    assert first.stderr
    while first.stderr.readline() != "50\n":
        assert first.poll() is None
    second = packer(source, out)
    assert second.poll() is None
    with first:
        first.kill()
    stdout, stderr = second.communicate()
    assert second.returncode == 0, stderr
    assert json.loads(stdout)["samples"] == len(open_dataset(out)) == 200
    assert names(tmp_path) == ["out", "src"]
