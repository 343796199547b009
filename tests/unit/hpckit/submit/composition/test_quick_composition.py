"""The quick composition has the same result as Hydra's own, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.config.config_trees import conf_dir
from hpckit.config.spec_error import SpecError
from hpckit.submit.composition.hydra_values import compose_values, parse_one
from hpckit.submit.composition.plain_overrides import parse_plain
from hpckit.submit.composition.quick_composition import UnusualConfigError, compose_quickly

PLAIN = [
    *("a=b", "a.b_c=x-1", "a=true", "a=FALSE", "a=Null", "a=0", "a=12", "a=500M", "a=12KB", "a=e1"),
    *("a=/x/y-z.w", "a=/x//y", "a=a.b", "a=a..b", "a=/1e5", "a=/1.5/x", "a=true.x", "a=null/x"),
    *("a=_x", "a=x-", "a=nullx", "a=n.inf", "a=infinity"),
]
OTHERS = [
    *("a=nan", "a=Inf", "a=007", "a=1_000", "a=1e3", "a=1e3K", "a=0K", "a=1.5", "a=-1", "a=x:"),
    *("a='x'", "a=", "a", "+a=1", "~a", "a@b=1", "a/b=1", "a=[1]", "a=1,2", "a=${b}", "a=b c"),
    *("a=é", "é=1", "a.0=1", "a=b\n", "a=1٣"),
]


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_override_is_parsed_as_by_the_grammar(text: str) -> None:
    found, expected = parse_plain(text), parse_one(text)
    assert found == expected
    assert found is not None
    assert type(found.value()) is type(expected.value())


@pytest.mark.parametrize("text", OTHERS)
def test_other_overrides_are_left_to_the_grammar(text: str) -> None:
    assert parse_plain(text) is None


@pytest.mark.parametrize(
    "words",
    [
        ["model=gpt_nano", "cluster=slurm", "data.shards=/x", "optim.lr=1e-3", "root='a b'"],
        ["experiment=demo", "~lora", "user_config={a: [1, {b: null}]}", "user_config.c=${name}"],
        ["model=gpt_nano", "train.seed=1,2", "model.layers=3", "no.such.key=2"],
    ],
    ids=["values", "experiment", "refused"],
)
def test_the_result_is_that_of_hydra(words: list[str]) -> None:
    found, expected = compose_quickly(words, conf_dir()), compose_values(words, conf_dir())
    assert found == expected
    assert found.to_json() == expected.to_json(), "in the same order"


def test_the_files_of_a_project_take_part(tmp_path: Path) -> None:
    for group, text in {
        "optim": "defaults: [adamw, _self_]\nlr: 0.5\n",
        "experiment": "# @package _global_\ndefaults: [override /optim: mine]\nname: me\n",
    }.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(text)
    words = ["model=gpt_nano", "experiment=mine"]
    found = compose_quickly(words, conf_dir(), tmp_path)
    assert (found.values["optim"]["lr"], found.values["name"]) == (0.5, "me")
    assert found.to_json() == compose_values(words, conf_dir(), tmp_path).to_json()
    (tmp_path / "optim" / "adamw.yaml").write_text("lr: 1.0\n")
    with pytest.raises(UnusualConfigError):
        compose_quickly([*words[:1], "optim=adamw"], conf_dir(), tmp_path)


@pytest.mark.parametrize("word", ["data=shards", "no_option=", "=", "optim=none_such"])
def test_what_hydra_refuses_has_no_result(word: str) -> None:
    words = ["model=gpt_nano", word]
    try:
        expected = compose_values(words, conf_dir())
    except SpecError:
        with pytest.raises(Exception):  # noqa: B017 - of whatever kind
            compose_quickly(words, conf_dir())
    else:
        assert compose_quickly(words, conf_dir()) == expected
