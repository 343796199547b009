"""Packing: webdataset's grouping, what is passed over, what is refused, the same bytes."""

import os
from pathlib import Path

import pytest

from data import DataError, open_dataset, pack_folder, python_stdlib
from data.index.tar.member_names import split_name


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def samples(out: Path) -> dict[str, dict[str, bytes]]:
    dataset = open_dataset(out)
    found = (dataset.read(i) for i in range(len(dataset)))
    return {s.pop("__key__"): {k: v for k, v in s.items() if k != "__url__"} for s in found}


def test_files_are_grouped_by_the_first_dot(tmp_path: Path) -> None:
    source = fill(
        tmp_path / "src",
        {
            "a.py": b"1",
            "a.txt": b"2",
            "a.seg.PNG": b"3",
            "a-b.txt": b"4",
            "v1.2/a.txt": b"5",
            "v1.2/empty.txt": b"",
        },
    )
    report = pack_folder(source, tmp_path / "out")
    assert (report.samples, report.files, report.bytes) == (4, 6, 5)
    assert samples(tmp_path / "out") == {
        "a": {"py": b"1", "txt": b"2", "seg.png": b"3"},
        "a-b": {"txt": b"4"},
        "v1.2/a": {"txt": b"5"},
        "v1.2/empty": {"txt": b""},
    }


def test_what_is_passed_over_is_counted(tmp_path: Path) -> None:
    source = fill(
        tmp_path / "src",
        {
            "a.txt": b"a",
            ".hidden.txt": b"",
            ".git/b.txt": b"",
            "README": b"",
            "dot.": b"",
            "skip/c.txt": b"",
            "deep/skip/d.txt": b"",
            "deep/x/e.txt": b"",
            "__meta__/f.txt": b"",
            "g.__key__": b"",
        },
    )
    os.mkfifo(source / "pipe.txt")
    (source / "loop").symlink_to(source, target_is_directory=True)
    (source / "link.txt").symlink_to(source / "a.txt")
    report = pack_folder(source, tmp_path / "out", exclude=["skip", "deep/x"])
    assert report.skipped == {
        "excluded": 3,
        "hidden": 2,
        "link to a folder": 1,
        "no extension": 2,
        "not a file": 1,
        "reserved name": 2,
    }
    assert samples(tmp_path / "out") == {"a": {"txt": b"a"}, "link": {"txt": b"a"}}


def test_suffixes_select(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", {"a.py": b"", "b.PY": b"", "c.txt": b"", "py": b""})
    assert pack_folder(source, tmp_path / "out", suffixes=(".py",)).samples == 2
    with pytest.raises(DataError, match="begin with a dot"):
        pack_folder(source, tmp_path / "out2", suffixes=("py",))


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    files = {f"{'long' * 30}/{i:03d}.txt": b"x" * i for i in range(50)} | {"é.txt": b"u"}
    for name in ("one", "two"):
        source = fill(tmp_path / name, dict(sorted(files.items(), reverse=name == "two")))
        pack_folder(source, tmp_path / f"{name}-out", samples_per_shard=20)
    tars = sorted((tmp_path / "one-out").glob("*.tar"))
    assert [tar.name for tar in tars] == [f"shard-{i:06d}.tar" for i in range(3)]
    for tar in tars:
        assert tar.read_bytes() == (tmp_path / "two-out" / tar.name).read_bytes()


def test_packing_again_returns_the_pack_that_is_there(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", {"a.txt": b"a"})
    first = pack_folder(source, tmp_path / "out")
    before = (tmp_path / "out/shard-000000.tar").stat()
    assert pack_folder(source, tmp_path / "out") == first
    assert (tmp_path / "out/shard-000000.tar").stat() == before


def test_touched_files_with_the_same_bytes_are_the_same_pack(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", {"a.txt": b"a"})
    first = pack_folder(source, tmp_path / "out")
    os.utime(source / "a.txt", (1, 1))
    assert pack_folder(source, tmp_path / "out") == first


def test_other_content_is_never_overwritten(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", {"a.txt": b"a"})
    fill(tmp_path / "other", {"mine.txt": b"precious"})
    with pytest.raises(DataError, match="other files"):
        pack_folder(source, tmp_path / "other")
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(DataError, match="other files"):
        pack_folder(source, tmp_path / "file")
    pack_folder(source, tmp_path / "out")
    (source / "a.txt").write_bytes(b"changed")
    with pytest.raises(DataError, match="another pack"):
        pack_folder(source, tmp_path / "out")
    assert samples(tmp_path / "out") == {"a": {"txt": b"a"}}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "other", "out", "src"]


def test_an_empty_folder_and_missing_parents_will_do(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", {"a.txt": b"a"})
    (tmp_path / "empty").mkdir()
    pack_folder(source, tmp_path / "empty")
    pack_folder(source, tmp_path / "x/y/z")
    assert samples(tmp_path / "empty") == samples(tmp_path / "x/y/z")


def test_a_damaged_pack_is_named(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", {"a.txt": b"a"})
    pack_folder(source, tmp_path / "out")
    (tmp_path / "out/shard-000000.tar").unlink()
    with pytest.raises(DataError, match=r"damaged \(shard-000000.tar\)"):
        pack_folder(source, tmp_path / "out")


def test_bad_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        pack_folder(tmp_path / "missing", tmp_path / "out")
    source = fill(tmp_path / "src", {"README": b""})
    with pytest.raises(DataError, match=r"nothing to pack.*no extension"):
        pack_folder(source, tmp_path / "out")
    fill(source, {"a.txt": b"", "a.TXT": b""})
    with pytest.raises(DataError, match="same member"):
        pack_folder(source, tmp_path / "out")
    with pytest.raises(DataError, match="lies inside"):
        pack_folder(source, source / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["src"]


@pytest.mark.parametrize("option", ["suffixes", "exclude"])
def test_one_text_is_no_list_of_patterns(tmp_path: Path, option: str) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(DataError, match=rf"{option} is a list of texts.*give \['\*\.tmp'\]"):
        pack_folder(tmp_path, tmp_path.parent / "out", **{option: "*.tmp"})  # type: ignore[arg-type]


def test_a_link_to_nothing_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = fill(tmp_path / "src", {"a.txt": b"a", "sub/b.txt": b"b"})
    (source / "dangling.txt").symlink_to(tmp_path / "nowhere")
    (source / "sub/loop.txt").symlink_to("loop.txt")
    (source / "through-a-file.txt").symlink_to("a.txt/b")
    (source / "too-long.txt").symlink_to("x" * 300)
    report = pack_folder(source, tmp_path / "out")
    assert (report.samples, report.skipped) == (2, {"broken link": 4})
    assert "4 links to files that do not exist were skipped" in caplog.text


@pytest.mark.parametrize(
    "several",
    [
        ("report.2020.txt", "report.2021.txt"),
        ("report.2020.txt", "report.2021.json"),
        ("report.txt", "report.2020.txt"),
        ("report.draft.txt", "report.final.txt"),
    ],
)
def test_files_of_one_sample_that_look_like_several_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, several: tuple[str, str]
) -> None:
    usual = ["1.seg.png", "1.png", "1.json", "2.a.txt", "2.b.json", "3.720p.mp4", "3.json"]
    pack_folder(fill(tmp_path / "src", dict.fromkeys(usual, b"")), tmp_path / "out")
    assert not caplog.text
    files = dict.fromkeys([*usual, *several], b"")
    report = pack_folder(fill(tmp_path / "src2", files), tmp_path / "out2")
    assert report.samples == 4
    assert "1 sample has files that look like several samples, such as report." in caplog.text
    assert all(name in caplog.text for name in several)
    more = {**files, "other.1.txt": b"", "other.2.txt": b""}
    pack_folder(fill(tmp_path / "src3", more), tmp_path / "out3")
    assert "2 samples have files that look like several samples" in caplog.text


def test_a_file_that_changes_while_packing_is_named(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", {"a.txt": b"a", "b.txt": b"b"})

    def grow(done: int, total: int) -> None:
        (source / "b.txt").write_bytes(b"longer")

    with pytest.raises(DataError, match=r"b\.txt changed while packing"):
        pack_folder(source, tmp_path / "out", samples_per_shard=1, progress=grow)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["src"]


def test_progress_counts_samples(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", {f"{i}.txt": b"" for i in range(5)})
    seen: list[tuple[int, int]] = []
    pack_folder(source, tmp_path / "out", samples_per_shard=2, progress=lambda *n: seen.append(n))
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_the_standard_library_is_there() -> None:
    folder, exclude = python_stdlib()
    assert (folder / "json/decoder.py").is_file()
    assert {"site-packages", "test", "__pycache__"} <= set(exclude)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("a.txt", ("a", "txt")),
        ("./d.e/a.b.TXT", ("./d.e/a", "b.txt")),
        ("d/.hidden", ("d/", "hidden")),
        ("d.e/none", None),
        ("none", None),
        ("__meta__/a.txt", None),
        ("__future__.py", ("__future__", "py")),
    ],
)
def test_names_split_as_webdataset_splits_them(name: str, split: tuple[str, str] | None) -> None:
    from webdataset.tariterators import base_plus_ext

    assert split_name(name) == split
    if not name.startswith("__meta__"):
        key, extension = base_plus_ext(name)
        assert (None if key is None else (key, extension.lower())) == split
