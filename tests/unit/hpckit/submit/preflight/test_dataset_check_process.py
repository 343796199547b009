"""The process that checks the dataset of a command while the command imports."""

from pathlib import Path
from typing import Any

import pytest

from data import pack_folder
from hpckit.config.spec import RunSpec
from hpckit.submit.composition.composed_values import ComposedValues
from hpckit.submit.preflight import dataset_checks
from hpckit.submit.preflight.dataset_check_process import DatasetCheckProcess, begin_dataset_check
from hpckit.submit.preflight.dataset_checks import DatasetCheck, DatasetSize, Pack
from tests.unit.hpckit.specs_and_processes import make_spec

HERE = DatasetCheck(DatasetSize(7, 7), ["checked here"])
KNOWN = ComposedValues({}, [])


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    texts = tmp_path / "texts"
    texts.mkdir()
    for n in range(5):
        (texts / f"{n}.txt").write_text(str(n))
    pack_folder(texts, tmp_path / "shards", samples_per_shard=3)
    return tmp_path / "shards"


def checked(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> DatasetCheck:
    """Returns what a process says, or `HERE` if the command has to check the dataset itself."""
    process = DatasetCheckProcess()

    def check_here(spec: RunSpec, pack: Pack | None) -> DatasetCheck:
        return HERE

    monkeypatch.setattr(dataset_checks, "check_dataset", check_here)
    return process.check(make_spec({f"data.{key}": value for key, value in changes.items()}), None)


def test_what_it_has_checked_comes_back(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(monkeypatch, shards=str(shards)) == DatasetCheck(DatasetSize(5, 2))


def test_the_command_itself_says_what_is_wrong(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checked(monkeypatch, shards=str(shards / "none")) == HERE


def test_and_what_a_user_is_warned_of(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = next(shards.glob("*.tar"))
    (shards / "forgotten.tar").write_bytes(tar.read_bytes())
    assert checked(monkeypatch, shards=str(shards)) == HERE


def test_and_packs_what_is_to_be_packed(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = str(shards.parent / "texts")
    pack = {"source": texts, "samples_per_shard": 3, "suffixes": [".txt"], "exclude": []}
    assert checked(monkeypatch, shards=str(shards / "new"), pack=pack) == HERE


@pytest.mark.parametrize("words", [["--cfg"], ["--fake-world"], ["--", "python", "train.py"]])
def test_a_command_that_reads_no_data_has_no_process(words: list[str]) -> None:
    assert begin_dataset_check(words, KNOWN) is None


def test_nor_has_one_whose_config_is_still_composed() -> None:
    assert begin_dataset_check([], None) is None
