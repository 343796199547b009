"""The options of a Checkpointer are the same as keywords and as one value."""

from __future__ import annotations

from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpointing import Checkpointer, CheckpointerOptions, Last, Steps
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
        ({"compress": "zstd"}, "compress must be True, False or 'auto', got 'zstd'"),
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
    with pytest.raises(TypeError, match="no option is named slot; did you mean slots"):
        Checkpointer(tmp_path, run="r", slot=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="give run=NAME"):
        Checkpointer(tmp_path)  # type: ignore[call-overload]


def test_both_forms_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="as one value or as keywords, not both"):
        Checkpointer(tmp_path, CheckpointerOptions(run="r"), slots=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"run": 3}, "run must be text, got 3"),
        ({"every": 100}, r"every must be a policy, such as Steps\(100\), .* got 100"),
        ({"keep": 3}, r"keep must be a list of policies, such as \[Last\(3\), .* got 3"),
        ({"keep": Last(3)}, "keep must be a list of policies"),
        ({"keep": ["last=3"]}, "keep must be a list of policies"),
        ({"overlap": 1}, "overlap must be True or False, got 1"),
        ({"compres": True}, "no option is named compres; did you mean compress?"),
        ({"interval": 100}, "no option is named interval; they are run, every, keep"),
    ],
)
def test_a_value_of_another_type_is_refused_before_anything_is_opened(
    option: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=message):
        Checkpointer(tmp_path / "store", **{"run": "r", **option})
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("state", [None, [torch.ones(1)], torch.nn.Linear(1, 1)])
def test_a_state_without_names_is_refused(state: Any, tmp_path: Path) -> None:
    with closing(Checkpointer(tmp_path, run="r")) as checkpointer:
        for use in (checkpointer.restore, lambda state: checkpointer.save(1, state)):
            with pytest.raises(TypeError, match="a state must be a dict of names, such as"):
                use(state)


def test_what_is_no_step_no_metric_and_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="give the folder or the URL of a store, got None"):
        Checkpointer(None, run="r")  # type: ignore[call-overload]
    state = {"model": torch.nn.Linear(1, 1)}
    with closing(Checkpointer(tmp_path, run="r", every=Steps(2))) as checkpointer:
        with pytest.raises(ValueError, match=r"a step must be a whole number from 0 .* got '3'"):
            checkpointer.due("3")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="metrics: loss must be a number, got 'low'"):
            checkpointer.save(1, state, metrics={"loss": "low"})  # type: ignore[dict-item]
