"""Indexing: every tar dialect, every kind of damage, and the sidecar that must never lie."""

import io
import json
import logging
import os
import tarfile
from pathlib import Path

import pytest

from data import ShardError, index_shard, load_or_build
from data.sidecar import sidecar_path

LONG = "d" * 120 + "/" + "f" * 150


def write_tar(path: Path, files: list[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_and_foreign_names(tmp_path: Path, format: int) -> None:
    files = [("a.txt", b"one"), (f"{LONG}.txt", b"two"), ("é/ü.json", b"{}")]
    path = write_tar(tmp_path / "s.tar", files, format)
    index = index_shard(path)
    assert [entry.key for entry in index.samples] == ["a", LONG, "é/ü"]
    content = path.read_bytes()
    for (_, expected), entry in zip(files, index.samples, strict=True):
        (member,) = entry.members.values()
        assert content[member.offset : member.offset + member.size] == expected


def test_ustar_prefix_names(tmp_path: Path) -> None:
    name = "d" * 90 + "/" + "f" * 60
    path = write_tar(tmp_path / "s.tar", [(f"{name}.txt", b"x")], tarfile.USTAR_FORMAT)
    assert index_shard(path).samples[0].key == name


def test_links_folders_and_metadata_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in [("d", tarfile.DIRTYPE), ("d/l.txt", tarfile.SYMTYPE)]:
            info = tarfile.TarInfo(name)
            info.type = kind
            tar.addfile(info)
        for name in ("__meta__/x.json", "README", "d/a.txt"):
            tar.addfile(tarfile.TarInfo(name))
    assert [entry.key for entry in index_shard(path).samples] == ["d/a"]


def test_an_empty_tar_has_no_samples(tmp_path: Path) -> None:
    assert index_shard(write_tar(tmp_path / "s.tar", [])).samples == ()


def test_missing_end_blocks_are_said_but_fine_if_the_last_member_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x" * 10), ("b.txt", b"y" * 600)])
    os.truncate(path, 512 + 512 + 512 + 1024)
    assert [entry.key for entry in index_shard(path).samples] == ["a", "b"]
    assert "may be cut short" in caplog.text


@pytest.mark.parametrize("cut", [1, 511, 513, 1024 + 100, 1024 + 512 + 599])
def test_a_truncated_tar_is_refused(tmp_path: Path, cut: int) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x" * 10), ("b.txt", b"y" * 600)])
    os.truncate(path, cut)
    with pytest.raises(ShardError, match=r"s\.tar, offset \d+") as caught:
        index_shard(path)
    assert caught.value.path == path
    assert caught.value.offset <= cut


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"x" * 4096, b"\x1f\x8b" + b"\0" * 1000, b"\0" * 600 + b"x"]
)
def test_no_tar_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(content)
    with pytest.raises(ShardError, match=r"s\.tar, offset \d+: "):
        index_shard(path)


def test_a_missing_shard_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.tar", tmp_path):
        with pytest.raises(ShardError, match="cannot be read"):
            index_shard(path)


def test_a_broken_header_in_the_middle_is_no_end(tmp_path: Path) -> None:
    """Stdlib tarfile would end here without a word."""
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x"), ("b.txt", b"y"), ("c.txt", b"z")])
    with path.open("r+b") as file:
        file.seek(1024)
        file.write(b"\xff" * 100)
    with pytest.raises(ShardError, match="offset 1024: broken tar header"):
        index_shard(path)


@pytest.mark.parametrize("blocks", [b"\xff\x00", b"\xfc\x00"])  # -256 and -1024 bytes
def test_a_negative_size_does_not_hang(tmp_path: Path, blocks: bytes) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x"), ("b.txt", b"y")])
    with path.open("r+b") as file:
        header = bytearray(file.read(512))
        header[124:136] = b"\xff" * 10 + blocks
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        file.seek(0)
        file.write(header)
    with pytest.raises(ShardError, match="offset 0: broken tar header"):
        index_shard(path)


def test_a_repeated_key_or_extension_is_refused(tmp_path: Path) -> None:
    again = [("a.txt", b""), ("b.txt", b""), ("a.json", b"")]
    with pytest.raises(ShardError, match=r"offset 1024: 'a.json' comes back to key 'a'"):
        index_shard(write_tar(tmp_path / "key.tar", again))
    twice = [("a.txt", b""), ("a.TXT", b"")]
    with pytest.raises(ShardError, match=r"offset 512: 'a\.TXT'.*occurs twice"):
        index_shard(write_tar(tmp_path / "ext.tar", twice))
    with pytest.raises(ShardError, match="reserved"):
        index_shard(write_tar(tmp_path / "res.tar", [("a.__key__", b"")]))


def test_the_sidecar_is_used_and_equals_the_index(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x"), ("a.json", b"{}"), ("b.txt", b"")])
    built = load_or_build(path)
    written = sidecar_path(path).stat()
    assert load_or_build(path) == built
    assert sidecar_path(path).stat() == written
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.tar", "s.tar.index.json"]


def test_the_digest_is_of_the_whole_shard(tmp_path: Path) -> None:
    from blake3 import blake3

    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x")])
    assert index_shard(path).blake3 is None
    assert index_shard(path, digest=True).blake3 == blake3(path.read_bytes()).hexdigest()


def test_a_changed_shard_is_indexed_anew(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x")])
    load_or_build(path)
    write_tar(path, [("b.txt", b"x")])
    os.utime(path, ns=(1, 1))
    assert [entry.key for entry in load_or_build(path).samples] == ["b"]
    assert json.loads(sidecar_path(path).read_bytes())["mtime_ns"] == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"version": 1',
        b'{"version": 99}',
        b'{"version":1,"bytes":10240,"mtime_ns":1,"blake3":null,"samples":[["a",{"txt":[1,2,3]}]]}',
        b'{"version":1,"bytes":10240,"mtime_ns":1,"blake3":null,"samples":[["a",[]]]}',
    ],
)
def test_a_broken_sidecar_is_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x")])
    sidecar_path(path).write_bytes(content)
    os.utime(path, ns=(1, 1))
    with caplog.at_level(logging.WARNING):
        index = load_or_build(path)
    assert "unusable" in caplog.text
    assert index == index_shard(path)
    assert sidecar_path(path).read_bytes() != content


def test_an_index_that_cannot_be_kept_is_used_from_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x")])
    sidecar_path(path).mkdir()  # not writable, even for root
    with caplog.at_level(logging.WARNING):
        assert load_or_build(path) == index_shard(path)
    assert "cannot keep the index" in caplog.text
    assert len(list(tmp_path.iterdir())) == 2
