"""Patterns of files, of whatever format."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from data.errors import DataError, NoShardsError
from data.index.shard_patterns import expand_ranges, find_files, find_shards, refuse_twice


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "lr=[1,2]"
    found.mkdir()
    for number in (0, 1, 3):
        (found / f"{number}.jsonl").touch()
    return found


def names(pattern: Path) -> list[str]:
    return [path.name for path in find_files(pattern, "files of lines")]


def test_the_brackets_of_a_folder_are_a_part_of_its_name(folder: Path) -> None:
    assert names(folder / "*.jsonl") == ["0.jsonl", "1.jsonl", "3.jsonl"]
    assert names(folder / "[01].jsonl") == names(folder / "{0..1}.jsonl") == ["0.jsonl", "1.jsonl"]


def test_so_are_its_braces(tmp_path: Path) -> None:
    shards = tmp_path / "x{0..1}" / "run"
    shards.mkdir(parents=True)
    for number in (0, 1):
        (shards / f"{number}.tar").touch()
    for pattern in ("*.tar", "{0..1}.tar"):
        assert [path.name for path in find_shards(shards / pattern)] == ["0.tar", "1.tar"]
    said = f"looked for {shards}/2.tar, but nothing matches"
    with pytest.raises(NoShardsError, match=re.escape(said)):
        find_shards(shards / "{1..2}.tar")


def test_words_and_steps_are_replaced_as_a_shell_does() -> None:
    assert expand_ranges("s3://b/{val,train}-{08..12..2}.tar") == [
        f"s3://b/{part}-{number}.tar" for part in ("val", "train") for number in ("08", "10", "12")
    ]
    assert expand_ranges("x{,-more}.tar") == ["x.tar", "x-more.tar"]
    for same in ("{a}", "{}", "{a..c}", "{1..}"):
        assert expand_ranges(same) == [same]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("{a,b{0..3}}", "a b0 b1 b2 b3"),
        ("{{a,b},c}", "a b c"),
        ("{a,{b,c}}-{0..1}", "a-0 a-1 b-0 b-1 c-0 c-1"),
        ("{{08..12..2},x{,y}}.tar", "08.tar 10.tar 12.tar x.tar xy.tar"),
        ("a{b{1..2}}c", "a{b1}c a{b2}c"),  # one word is no choice
        ("{a,b{c}}", "a b{c}"),
        ("x{a,b}{", "xa{ xb{"),
        ("{a,b{0..1}", "{a,b0 {a,b1"),
        ("a}{b,c}", "a}b a}c"),
    ],
)
def test_braces_within_braces_are_those_of_a_shell(pattern: str, names: str) -> None:
    assert expand_ranges(pattern) == names.split()
    in_bash = subprocess.run(["bash", "-c", f"echo {pattern}"], capture_output=True, text=True)
    assert in_bash.stdout.split() == names.split()


def test_braces_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(DataError, match="within more than 50 others; write the shards as a list"):
        expand_ranges("{a," * 2000 + "}" * 2000)


def test_folders_among_words_are_their_tars(tmp_path: Path) -> None:
    for name in ("a/1.tar", "a/2.tar", "b/3.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in find_shards(tmp_path / "{b,a}")] == ["3.tar", "1.tar", "2.tar"]


def test_the_braces_of_a_command_are_its_own() -> None:
    command = "pipe:awk '{print $1,$2}' {0..1}.txt"
    assert expand_ranges(command, choices=False) == [
        f"pipe:awk '{{print $1,$2}}' {number}.txt" for number in (0, 1)
    ]


@pytest.mark.parametrize("pattern", ["{0..99999999999999999999999}", "{0..9999}{0..9999}"])
def test_too_many_names_are_refused_before_they_are_made(pattern: str) -> None:
    with pytest.raises(DataError, match="more than 10,000,000"):
        expand_ranges(pattern)


def test_two_stars_stand_for_folders_at_any_depth(tmp_path: Path) -> None:
    for name in ("0.tar", "a/1.tar", "a/b/2.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in find_shards(tmp_path / "**/*.tar")] == ["0.tar", "1.tar", "2.tar"]


def test_each_file_of_a_range_has_to_be_there(folder: Path) -> None:
    said = f"no files of lines: looked for {folder}/2.jsonl, nothing is there"
    with pytest.raises(NoShardsError, match=re.escape(said)):
        names(folder / "{0..3}.jsonl")


def test_what_is_near_is_told_of_a_relative_pattern_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    said = f"looked for lr=12, but nothing matches; did you mean {folder}?"
    with pytest.raises(NoShardsError, match=re.escape(said)):
        find_shards("lr=12")


def test_a_brace_that_is_not_closed_is_told(folder: Path) -> None:
    with pytest.raises(NoShardsError, match=r"\{a,b \(a brace is not closed\), but"):
        find_shards(folder / "{a,b")


def test_a_file_is_given_once(folder: Path) -> None:
    refuse_twice(sorted(folder.iterdir()), "lines")
    (folder / "again.jsonl").symlink_to(folder / "3.jsonl")
    with pytest.raises(DataError, match="is given twice; its lines would be seen twice"):
        refuse_twice(sorted(folder.iterdir()), "lines")
