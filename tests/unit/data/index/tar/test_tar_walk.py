"""Headers: read as the standard library reads them, in every dialect, and every kind of damage."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import ShardError
from data.index.shard.shard_index import ShardIndex
from data.index.shard.shard_scan import StreamedShardIndexer, scan_shard
from data.index.tar.read_window import ReadWindow
from data.index.tar.tar_walk import MOST_EXTENDED
from tests.effort import times
from tests.unit.data.tars import by_index, by_tarfile, tar_bytes, write_tar

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
LONG = "d" * 120 + "/" + "f" * 150

words = st.text(st.characters(exclude_characters="./\0", codec="utf-8"), min_size=1, max_size=60)
keys = st.lists(words, min_size=1, max_size=4).map("/".join)
extensions = st.sampled_from(["txt", "JPG", "seg.png", "é", "cls", ""])
contents = st.integers(0, 3000).map(lambda n: b"x" * n)


@st.composite
def members(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """Members of distinct samples, in any names that a tar can have."""
    chosen = draw(st.lists(keys, max_size=6, unique=True))
    files: list[tuple[str, bytes]] = []
    for key in chosen:
        for extension in draw(st.lists(extensions, min_size=1, max_size=3, unique=True)):
            files.append((f"{key}.{extension}", draw(contents)))
    return files


def passed(content: bytes, step: int) -> ShardIndex:
    passing = StreamedShardIndexer("s.tar")
    for at in range(0, len(content), step):
        passing.feed(memoryview(content)[at : at + step])
    return passing.finish()


def indexed(tmp_path: Path, content: bytes) -> ShardIndex:
    (tmp_path / "s.tar").write_bytes(content)
    return scan_shard(tmp_path / "s.tar")


@settings(max_examples=times(75), deadline=None)
@given(members(), st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]), st.integers(1, 5000))
def test_the_same_samples_as_the_standard_library(
    files: list[tuple[str, bytes]], format: int, step: int
) -> None:
    content = tar_bytes(files, format)
    expected = by_tarfile(content)
    assert by_index(passed(content, step)) == expected
    assert len(expected) <= len({name for name, _ in files})


@settings(max_examples=times(50), deadline=None)
@given(members(), st.integers(0, 10**6), st.integers(0, 255), st.sampled_from(FORMATS[1:]))
def test_a_changed_byte_is_an_error_or_read_as_the_standard_library_reads_it(
    files: list[tuple[str, bytes]], at: int, byte: int, format: int
) -> None:
    content = bytearray(tar_bytes(files, format))
    content[at % len(content)] = byte
    try:
        found = passed(bytes(content), 700)
    except ShardError:
        return
    assert by_index(found) == by_tarfile(bytes(content))


@pytest.mark.parametrize("format", FORMATS)
def test_all_dialects_from_a_file(tmp_path: Path, format: int) -> None:
    long = "d" * 90 + "/" + "f" * 60
    files = [("a.txt", b"one"), (f"{long}.txt", b"two"), (f"{long}.json", b""), ("é/ü.json", b"{}")]
    content = tar_bytes(files, format)
    index = indexed(tmp_path, content)
    assert by_index(index) == by_tarfile(content)
    assert [index.key(i) for i in range(len(index))] == ["a", long, "é/ü"]


@pytest.mark.parametrize("format", FORMATS[1:])
def test_spans_hold_the_headers_of_long_names(tmp_path: Path, format: int) -> None:
    content = tar_bytes([("a.txt", b"1"), (f"{LONG}.txt", b"2"), (f"{LONG}.json", b"3")], format)
    index = indexed(tmp_path, content)
    begin, end = index.span(1)
    assert begin == index.span(0)[1] + 511
    with tarfile.open(fileobj=io.BytesIO(content[begin:end] + bytes(2048)), mode="r:") as alone:
        assert [info.name for info in alone] == [f"{LONG}.txt", f"{LONG}.json"]


def test_pax_sizes_and_global_headers(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x.bin")
    info.size = 5
    info.pax_headers = {"size": "5", "comment": "newline\n7 path=no", "path": "dir.d/y.bin"}
    with tarfile.open(
        tmp_path / "s.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "all"}
    ) as tar:
        tar.addfile(info, io.BytesIO(b"12345"))
    content = (tmp_path / "s.tar").read_bytes()
    assert by_index(scan_shard(tmp_path / "s.tar")) == by_tarfile(content)
    assert scan_shard(tmp_path / "s.tar").key(0) == "dir.d/y"


def test_a_global_name_is_refused(tmp_path: Path) -> None:
    with tarfile.open(
        tmp_path / "s.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"path": "all.txt"}
    ) as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    with pytest.raises(ShardError, match="offset 0: a global pax header"):
        scan_shard(tmp_path / "s.tar")


def test_a_huge_size_in_base_256_is_cut_short_and_not_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.bin")
    info.size = 1 << 60
    (tmp_path / "s.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(ShardError, match=r"offset 0: cut short: its member ends at byte 1152921"):
        scan_shard(tmp_path / "s.tar")


@pytest.mark.parametrize("kind", [b"x", b"g", b"L"])
def test_a_huge_extended_header_is_not_read(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("a.txt")
    info.type, info.size = kind, MOST_EXTENDED + 1
    (tmp_path / "s.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2 * MOST_EXTENDED))
    with pytest.raises(ShardError, match="an extended header of 1048577 bytes"):
        scan_shard(tmp_path / "s.tar")


@pytest.mark.parametrize(
    "records", [b"99 path=a\n", b"x", b"-5 path=a\n", b"7 path\n", b"0 path=a\n", b"9 size=x\n"]
)
def test_broken_pax_records_are_refused(tmp_path: Path, records: bytes) -> None:
    info = tarfile.TarInfo("PaxHeader")
    info.type, info.size = b"x", len(records)
    content = (
        info.tobuf(tarfile.USTAR_FORMAT) + records.ljust(512, b"\0") + tar_bytes([("a.b", b"")])
    )
    with pytest.raises(ShardError, match="offset 0"):
        indexed(tmp_path, content)


def test_an_extended_header_at_the_end_is_refused(tmp_path: Path) -> None:
    content = tar_bytes([(f"{LONG}.txt", b"")], tarfile.GNU_FORMAT)[:1024]
    for rest in (b"", bytes(10240)):
        with pytest.raises(ShardError, match="offset 0: damaged: it ends after an extended header"):
            indexed(tmp_path, content + rest)


def test_links_folders_and_metadata_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in [("d", tarfile.DIRTYPE), ("d/l.txt", tarfile.SYMTYPE)]:
            info = tarfile.TarInfo(name)
            info.type = kind
            tar.addfile(info)
        for name in ("__meta__/x.json", "README", "d/a.txt"):
            tar.addfile(tarfile.TarInfo(name))
    assert [key for key, _ in by_index(scan_shard(path))] == ["d/a"]


def test_names_that_leave_the_folder_are_only_names(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", [("../../a.txt", b"1"), ("/etc/b.txt", b"2")])
    assert [key for key, _ in by_index(scan_shard(path))] == ["../../a", "/etc/b"]


def test_an_empty_tar_has_no_samples(tmp_path: Path) -> None:
    index = scan_shard(write_tar(tmp_path / "s.tar", []))
    assert (len(index), index.bytes) == (0, 10240)


def test_sparse_members_are_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.bin")
    info.type = tarfile.GNUTYPE_SPARSE
    info.pax_headers = {}
    (tmp_path / "gnu.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with tarfile.open(tmp_path / "pax.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        regular = tarfile.TarInfo("a.bin")
        regular.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        tar.addfile(regular)
    for name in ("gnu.tar", "pax.tar"):
        with pytest.raises(ShardError, match="offset 0: a sparse member"):
            scan_shard(tmp_path / name)


def test_missing_end_blocks_are_said_but_fine_if_the_last_member_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x" * 10), ("b.txt", b"y" * 600)])
    os.truncate(path, 512 + 512 + 512 + 1024)
    assert len(scan_shard(path)) == 2
    assert "may be cut short" in caplog.text


@pytest.mark.parametrize("cut", [1, 511, 513, 1024 + 100, 1024 + 512 + 599, 1024 + 512 + 601])
def test_a_truncated_tar_is_refused(tmp_path: Path, cut: int) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"x" * 10), ("b.txt", b"y" * 600)])
    os.truncate(path, cut)
    with pytest.raises(ShardError, match=r"s\.tar, offset \d+") as caught:
        scan_shard(path)
    assert caught.value.path == path
    assert caught.value.offset <= cut
    with pytest.raises(ShardError, match=r"offset \d+"):
        passed(path.read_bytes(), 100)


@pytest.mark.parametrize("content", [b"", b"hello", b"x" * 4096, b"\0" * 600 + b"x"])
def test_no_tar_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ShardError, match=r"s\.tar, offset \d+: "):
        indexed(tmp_path, content)


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_a_compressed_tar_is_named(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, f"w:{mode}") as tar:  # type: ignore[call-overload]
        for i in range(20):
            info = tarfile.TarInfo(f"{i}.bin")
            info.size = 400
            tar.addfile(info, io.BytesIO(os.urandom(400)))
    with pytest.raises(ShardError, match=r"compressed with \w+.*decompress it first") as caught:
        scan_shard(path)
    assert ("a file named .tar.gz is unpacked into a cache" in str(caught.value)) is (mode == "gz")


@pytest.mark.parametrize("size", [0, 600])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1}\n', "looks like JSON; lines of JSON are read from a file named .jsonl"),
        (b"<html>sign in</html>", "looks like a page of HTML or XML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "looks like a pointer of Git LFS"),
        (b"\x1f\x8b\x08", "compressed with gzip"),
    ],
)
def test_what_is_given_in_place_of_a_tar_is_named(
    tmp_path: Path, content: bytes, said: str, size: int
) -> None:
    with pytest.raises(ShardError, match=said):
        indexed(tmp_path, content + b"x" * size)


def test_a_missing_shard_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.tar", tmp_path):
        with pytest.raises(ShardError, match="cannot be read"):
            scan_shard(path)


def test_a_broken_header_in_the_middle_is_no_end(tmp_path: Path) -> None:
    """The standard library would end here without a word."""
    content = bytearray(tar_bytes([("a.txt", b"x"), ("b.txt", b"y"), ("c.txt", b"z")]))
    content[1024:1124] = b"\xff" * 100
    with pytest.raises(ShardError, match="offset 1024: broken tar header"):
        indexed(tmp_path, bytes(content))


def with_sum(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize(
    "field", [b"\xff" * 10 + b"\xff\x00", b"\xff" * 10 + b"\xfc\x00", b"-0000000001\0"]
)
def test_a_negative_size_does_not_hang(tmp_path: Path, field: bytes) -> None:
    content = bytearray(tar_bytes([("a.txt", b"x"), ("b.txt", b"y")]))
    content[124:136] = field
    content[:512] = with_sum(content[:512])
    with pytest.raises(ShardError, match="offset 0: broken tar header"):
        indexed(tmp_path, bytes(content))


def test_signed_checksums_of_old_tars_are_known(tmp_path: Path) -> None:
    content = bytearray(tar_bytes([("é.txt", b"x")], tarfile.GNU_FORMAT))
    header = content[:512]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % (sum(header) - 256 * 2)
    content[:512] = header
    assert by_index(indexed(tmp_path, bytes(content))) == by_tarfile(bytes(content))


def test_a_repeated_key_or_extension_is_refused(tmp_path: Path) -> None:
    again = [("a.txt", b""), ("b.txt", b""), ("a.json", b"")]
    with pytest.raises(ShardError, match=r"offset 1024: 'a.json' continues key 'a'"):
        scan_shard(write_tar(tmp_path / "key.tar", again))
    twice = [("a.txt", b""), ("a.TXT", b"")]
    with pytest.raises(ShardError, match=r"offset 512: 'a\.TXT'.*occurs twice"):
        scan_shard(write_tar(tmp_path / "ext.tar", twice))
    with pytest.raises(ShardError, match="reserved"):
        scan_shard(write_tar(tmp_path / "res.tar", [("a.__key__", b"")]))


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 600)), max_size=30),
    st.integers(1, 900),
    st.integers(1, 300),
)
def test_a_window_gives_the_bytes_of_the_file(
    steps: list[tuple[int, int]], near: int, far: int
) -> None:
    content = bytes(i % 251 for i in range(20_000))
    window = ReadWindow(lambda o, s: content[o : o + s], len(content), near, far)
    offset = 0
    for step, size in steps:
        offset = min(offset + step, len(content))
        assert window(offset, size) == content[offset : offset + size]


def test_links_are_left_out_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("1.txt"))
        for name, kind in ((LONG, tarfile.LNKTYPE), ("3.txt", tarfile.SYMTYPE), ("4.txt", b"2")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, "1.txt"
            tar.addfile(link)
        tar.addfile(tarfile.TarInfo("5.txt"))
    index = indexed(tmp_path, made.getvalue())
    assert [index.key(i) for i in range(len(index))] == ["1", "5"]
    (told,) = caplog.messages
    assert f"1 hard links and 2 symbolic links are left out, the first is {LONG}" in told
    assert passed(made.getvalue(), 512).digest == index.digest
