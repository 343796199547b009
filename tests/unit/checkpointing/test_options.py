"""The options of a Checkpointer are the same as keywords and as one value."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from checkpointing import Checkpointer, CheckpointerOptions, Last
from checkpointing.options import CheckpointerKeywords


def test_the_keywords_are_the_fields() -> None:
    def as_written(name: str) -> str:
        return str(CheckpointerKeywords.__annotations__[name].__forward_arg__)

    written = {name: as_written(name) for name in CheckpointerKeywords.__annotations__}
    assert written == {**CheckpointerOptions.__annotations__, "run": "Required[str]"}


def test_each_option_is_described() -> None:
    described = CheckpointerOptions.__doc__ or ""
    assert [
        f.name for f in fields(CheckpointerOptions) if f"        {f.name}: " not in described
    ] == []


def test_the_service_gets_its_options() -> None:
    options = CheckpointerOptions(run="r", keep=[Last(3)], compress=False, depth=2, local="~/spool")
    config = options.service_config("file:///data/store")
    assert (config.url, config.run, config.keep) == ("/data/store", "r", (Last(3),))
    assert (config.compress, config.depth, config.options) == (False, 2, {})
    assert config.local == str(Path("~/spool").expanduser())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"run": "../x"}, "run name"),
        ({"slots": 0}, "slots must be a number of snapshots, at least 1, got 0"),
        ({"staging": "bucketed"}, "staging must be 'slots' or 'buckets', got 'bucketed'"),
        ({"replicas": 2}, "replicas must be 0 or 1, got 2"),
        ({"replicas": 1, "staging": "buckets"}, "replicas=1 needs staging='slots'"),
        ({"differing": "no"}, "differing must be 'error' or 'warn', not 'no'"),
        ({"check_replicas": 0.5}, "check_replicas must be 'every', a number of saves or False"),
        ({"may_differ": "w"}, "may_differ must be a list of patterns"),
        ({"local": "s3://b/f"}, "local must be the path of a folder on each node's own disk"),
    ],
)
def test_an_impossible_value_is_refused_before_anything_is_opened(
    option: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        CheckpointerOptions(**{"run": "r", **option})
    with pytest.raises(ValueError, match=message):
        Checkpointer(tmp_path / "store", **{"run": "r", **option})
    assert not (tmp_path / "store").exists()


def test_an_unknown_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'slot'"):
        Checkpointer(tmp_path, run="r", slot=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'run'"):
        Checkpointer(tmp_path)  # type: ignore[call-overload]


def test_both_forms_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="as one value or as keywords, not both"):
        Checkpointer(tmp_path, CheckpointerOptions(run="r"), slots=3)  # type: ignore[call-overload]
