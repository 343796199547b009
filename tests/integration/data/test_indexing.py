"""Indexing with real processes: as webdataset reads, killed half-way, and on the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import webdataset

import data
from data.errors import IndexingError
from data.index.index_build import build_index
from data.index.manifest import NAME, Manifest, open_manifest
from data.write.shard_writer import ShardWriter
from hpckit.cli.common.exit_status import NOT_ALL
from tests.integration.cli.data_commands import document, hpckit
from tests.unit.data.tars import write_tar

ROOT = Path(data.__file__).parents[1]

BUILD = """
import sys
from data.index.index_build import build_index

def progress(done, total):
    print(done, file=sys.stderr, flush=True)
    if "stop" in sys.argv and done >= 10:
        sys.stdin.read()    # waits here until it is killed

build_index(sys.argv[1], workers=2, progress=progress)
"""


def read(manifest: Manifest) -> dict[str, dict[str, bytes]]:
    samples: dict[str, dict[str, bytes]] = {}
    for number, url in enumerate(manifest.urls):
        index, content = manifest.open_shard(number), Path(url).read_bytes()
        for i in range(len(index)):
            members = index.members(i)
            samples[index.key(i)] = {
                m.extension: content[m.offset : m.offset + m.size] for m in members
            }
    return samples


def read_with_webdataset(shards: list[Path]) -> dict[str, dict[str, bytes]]:
    pipeline = webdataset.WebDataset([str(path) for path in shards], shardshuffle=False)
    return {
        sample["__key__"]: {name: v for name, v in sample.items() if not name.startswith("__")}
        for sample in pipeline
    }


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_samples_are_webdataset_s(tmp_path: Path, format: int) -> None:
    names = ["a.txt", "a.b.JSON", "v1.2/a.txt", "./d/e.cls", "__future__.py", "__meta__/x.txt"]
    names += ["README", "d/.hidden", "../up.txt", "/abs/x.txt", "two..dots", "a b.txt"]
    if format != tarfile.USTAR_FORMAT:
        names += ["v1.2/" + "long" * 50 + ".txt", "ü/" + "é" * 90 + ".txt", "new\nline.x"]
    shard = write_tar(tmp_path / "s.tar", [(name, name.encode()) for name in names], format)
    ours, theirs = read(build_index(shard)), read_with_webdataset([shard])
    assert ours == theirs
    assert len(ours) >= 9


def test_webdataset_reads_what_is_written(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s-%02d.tar", max_samples=7) as writer:
        for i in range(30):
            writer.write(
                {"__key__": f"é/{'k' * 100}{i:02d}", "txt": f"text {i}", "a.bin": b"\0" * i}
            )
    found = open_manifest(tmp_path)
    theirs = read_with_webdataset(sorted(tmp_path.glob("*.tar")))
    assert read(found) == theirs
    assert list(read(found)) == list(theirs)
    assert len(theirs) == 30


def test_shards_that_webdataset_wrote(tmp_path: Path) -> None:
    with webdataset.ShardWriter(str(tmp_path / "s-%02d.tar"), maxcount=7, verbose=0) as writer:
        for i in range(30):
            writer.write({"__key__": f"k{i:02d}", "txt": f"text {i}", "json": {"n": i}})
    found = build_index(tmp_path, tokens="json:n")
    assert found.n_tokens is not None
    assert int(found.n_tokens.sum()) == sum(range(30))
    assert read(found) == read_with_webdataset(sorted(tmp_path.glob("*.tar")))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "d"
    folder.mkdir()
    for n in range(40):
        write_tar(folder / f"s-{n:02d}.tar", [(f"{n}-{i}.txt", b"x" * 2000) for i in range(50)])
    return folder


def builder(folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(folder), *flags],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_killed_build_goes_on_where_it_was(shards: Path) -> None:
    with builder(shards, "stop") as process:
        assert process.stderr
        while process.stderr.readline() != "10\n":
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    assert not (shards / NAME).exists()
    done = {path.name: path.stat().st_mtime_ns for path in shards.glob("*.index")}
    assert len(done) >= 10
    with builder(shards) as process:
        assert process.stderr
        assert "40\n" in process.stderr.read()
    assert process.returncode == 0
    found = open_manifest(shards)
    assert (len(found), found.total_samples) == (40, 2000)
    assert {name: (shards / name).stat().st_mtime_ns for name in done} == done
    assert len(read(found)) == 2000


def test_two_builds_at_once(shards: Path) -> None:
    processes = [builder(shards) for _ in range(2)]
    results = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert open_manifest(shards).total_samples == 2000
    assert not [path for path in shards.iterdir() if path.name.startswith(".")]


def test_processes_and_threads_say_the_same(shards: Path) -> None:
    (shards / "s-07.tar").write_bytes(b"no tar")
    (shards / "s-09.tar").write_bytes((shards / "s-08.tar").read_bytes()[:5000])
    texts = []
    for workers in (1, 2):
        with pytest.raises(IndexingError, match="2 of 40") as caught:
            build_index(shards, workers=workers)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert f"{shards}/s-09.tar, offset" in texts[0]


# On the command line


def test_index_ls_and_verify(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    made = document("index", shards, "--hash", "--tokens", "bin:uint8", "--workers", 1, exit_code=1)
    assert "'bin:uint8' counts no tokens" in made["error"]
    made = document("index", shards, "--hash")
    assert (made["shards"], made["samples"], made["tokens"]) == (40, 2000, None)
    assert made["fingerprint"] == open_manifest(shards).fingerprint
    assert "2,000 samples in 40 shards" in hpckit("index", shards).stdout
    listed = document("ls", shards, "--most", 3)
    assert [row["samples"] for row in listed["listed"]] == [50, 50, 50]
    assert "and 30 more" in hpckit("ls", shards, "--most", 10).stdout
    (sample,) = document("ls", shards, "--shard", 2, "--most", 1)["listed"]
    assert (sample["key"], sample["begin"], sample["end"]) == ("2-0", 0, 2512)
    assert "txt 2.0 KiB" in hpckit("ls", shards / NAME, "--shard", 39).stdout
    assert "all whole" in hpckit("verify", shards, "--full").stdout
    assert (
        "40 shards of 5.1 MiB checked: all headers are right\n" in hpckit("verify", shards).stdout
    )
    content = bytearray((shards / "s-05.tar").read_bytes())
    content[600] ^= 1
    (shards / "s-05.tar").write_bytes(content)
    assert hpckit("verify", shards).exit_code == 0
    told = hpckit("verify", shards, "--full")
    assert told.exit_code == 1
    assert f"damaged: {shards}/s-05.tar: its bytes have changed" in told.stdout
    wrong = document("verify", shards, "--full", exit_code=1)["shards"]
    assert [shard["url"] for shard in wrong if shard["problem"]] == [f"{shards}/s-05.tar"]


def test_verify_says_what_it_could_not_verify(shards: Path) -> None:
    document("index", shards)
    content = bytearray((shards / "s-05.tar").read_bytes())
    content[600] ^= 1  # of the payload of a member, which only a checksum tells
    (shards / "s-05.tar").write_bytes(content)
    told = hpckit("verify", shards, "--full")
    assert told.exit_code == NOT_ALL
    assert "all whole" not in told.stdout
    assert "all headers are right; the contents of 40 shards were not verified" in told.stdout
    assert "`hpckit data index --hash`" in told.stdout


def test_verify_says_which_tars_it_does_not_know(shards: Path) -> None:
    document("index", shards)
    (shards / "t-00.tar").write_bytes((shards / "s-00.tar").read_bytes())
    (shards / "._s-00.tar").write_bytes(b"of macOS")
    told = hpckit("verify", shards)
    assert told.exit_code == 0
    assert "not verified, as the index does not list them: t-00.tar\n" in told.stdout
    assert document("verify", shards)["unlisted"] == ["t-00.tar"]


def test_a_file_url_of_a_folder_is_the_folder(shards: Path) -> None:
    document("index", shards)
    for place in (f"file://{shards}", f"file://{shards}/"):
        assert hpckit("verify", place).exit_code == 0
        assert document("ls", place) == document("ls", shards)


def test_what_is_no_index_is_not_damaged(tmp_path: Path, shards: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n")
    for path, said in (
        (shards / "s-00.tar", "is a shard, which is verified by its index"),
        (tmp_path / "x.csv", "is neither an index nor a file that is read in place"),
    ):
        told = hpckit("verify", path)
        assert told.exit_code == 2
        assert said in told.stderr


def test_refusals_of_the_commands(tmp_path: Path, shards: Path) -> None:
    for code, arguments in (
        (2, ("index", tmp_path / "none")),
        (2, ("index", "s3://bucket/s-{0..3}.tar")),
        (2, ("index", shards, "--tokens", "words")),
        (2, ("ls", tmp_path)),
        (2, ("verify", shards)),
        (2, ("pack", tmp_path / "none", tmp_path / "out")),
    ):
        result = hpckit(*arguments)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
    hpckit("index", shards)
    assert "the last one is 39" in hpckit("ls", shards, "--shard", 40).stderr


def test_pack_says_what_it_made(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for i in range(5):
        (tmp_path / f"src/{i}.txt").write_text("text")
    made = document("pack", tmp_path / "src", tmp_path / "out", "--samples-per-shard", 2)
    assert (made["samples"], len(made["shards"])) == (5, 3)
    assert open_manifest(tmp_path / "out").total_samples == 5
