"""Overrides on `conf/` to a spec: what is there composes, what is not is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.errors import ConfigCompositionException

from hpckit.config.config_trees import conf_dir, group_options
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec_parser import SpecError
from hpckit.submit.compose import compose_spec
from hpckit.submit.composition import hydra_values

NEEDED = {
    "data=shards": ["data.shards=/data"],
    "data=tokens": ["data.shards=/data"],
    "data=mixture": [
        f"data.mixture.sources.{name}={{shards: /{name}, weight: 1}}" for name in ("web", "code")
    ],
    "command=program": ["command.arguments=[python, train.py]", "entry=null"],
    "init_from=huggingface": ["init_from.path=/trained"],
    "init_from=checkpoint": ["init_from.path=runs/base"],
    "parallel=3d": ["launch.nodes=2", "train.micro_batch=4"],
    "experiment=images": ["data.shards=/data"],
    "data=images": ["experiment=images", "data.shards=/data"],
    **{
        f"model={model}": ["experiment=images", "data.shards=/data"]
        for model in ("resnet50", "resnet_nano", "vit_s16", "vit_nano")
    },
}
OPTIONS = [f"{g}={o}" for g, options in group_options(conf_dir()).items() for o in options]


def refusal(*overrides: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        compose_spec(overrides)
    return caught.value.violations


@pytest.mark.parametrize("choice", OPTIONS)
def test_every_option_of_every_group_composes(choice: str) -> None:
    compose_spec([choice, *NEEDED.get(choice, [])])


def test_ctrl_c_that_omegaconf_turns_into_an_error_is_ctrl_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ConfigCompositionException from error

    monkeypatch.setattr(hydra_values, "compose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compose_spec([])


def test_every_group_has_options() -> None:
    assert all(group_options(conf_dir()).values())


def test_options_and_values_reach_the_spec_and_values_win() -> None:
    spec = compose_spec(
        [
            "model=gpt_nano",
            "model.layers=5",
            "experiment=demo",
            "user_config.dropout=0.1",
            "user_config.a.b=[1,x]",
        ]
    )
    assert (decoder_of(spec).layers, decoder_of(spec).width) == (5, 64)
    assert (spec.name, spec.launch.nodes) == ("demo", 2)
    assert spec.user_config == {"dropout": 0.1, "a": {"b": [1, "x"]}}


def test_a_misspelt_option_is_told_the_right_one_and_all_there_are() -> None:
    (line,) = refusal("retry=defaults")
    assert line == "retry: no option 'defaults'; did you mean default? there are default, none"


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_a_misspelt_key_is_told_the_right_one(prefix: str) -> None:
    assert refusal(f"{prefix}model.layrs=3") == [
        "model.layrs: unknown key; did you mean model.layers?"
    ]


def test_a_misspelt_group_is_told_the_right_one() -> None:
    assert refusal("modle=gpt_nano") == ["modle: unknown key; did you mean model?"]


@pytest.mark.parametrize(
    "override", ["model.layers=1,2", "model.layers=range(1,4)", "model=gpt_nano,gpt_tiny"]
)
def test_a_sweep_is_refused(override: str) -> None:
    (line,) = refusal(override)
    assert override in line
    assert "sweep" in line


@pytest.mark.parametrize("override", ["model.layers", "--x", "a b", ""])
def test_what_is_no_override_is_named(override: str) -> None:
    (line,) = refusal(override)
    assert line.startswith(f"{override}: is not an override like key=value or group=option")
    assert "\n" not in line


@pytest.mark.parametrize("value", ["[1,", "{", "'a"])
def test_a_bracket_that_is_open_is_named(value: str) -> None:
    (line,) = refusal(f"user_config.x={value}")
    assert line.startswith(
        f"user_config.x: {value!r} cannot be read; close each bracket and quote ("
    )
    assert "\n" not in line


def test_spaces_around_the_equals_sign_are_named() -> None:
    assert refusal("train.steps", "=", "5") == ["=: has no key; write key=value without spaces"]


@pytest.mark.parametrize("value", ["/data/train-{000..127}.tar", "~/shards", "/a b", "s3://b/x"])
def test_a_path_needs_no_quotes_beyond_the_shells(value: str) -> None:
    assert compose_spec(["data=shards", f"data.shards={value}"]).data.shards == value


def test_a_value_that_only_the_user_knows_is_asked_for() -> None:
    assert refusal("data=shards") == ["data.shards: has no value; give data.shards=..."]


def test_an_interpolation_into_nothing_is_refused() -> None:
    (line,) = refusal("name=${nothing}")
    assert "nothing" in line


def test_a_deleted_group_is_missed() -> None:
    assert refusal("~retry") == ["retry: has no value"]


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = refusal("model=gpt_nan0", "train.steps=1,2", "optim.lrr=1", "launch.nodes=0")
    assert [line.split(":")[0] for line in found] == [
        "model",
        "train.steps",
        "launch.nodes",
        "optim.lrr",
    ]


def test_all_bad_syntax_is_said_at_once() -> None:
    assert len(refusal("a b", "model.layers", "train.steps=3")) == 2


def test_composing_twice_gives_the_same_and_leaves_nothing_behind() -> None:
    refusal("model=none")
    assert compose_spec(["train.seed=5"]) == compose_spec(["train.seed=5"])
    assert compose_spec([]).train.seed != 5


def test_shards_go_into_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert compose_spec([]).data.shards == "~/.cache/hpckit/stdlib"
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/cache")
    assert compose_spec([]).data.shards == "/scratch/cache/hpckit/stdlib"


def test_another_config_tree_can_be_given(tmp_path: Path) -> None:
    for file in conf_dir().rglob("*.yaml"):
        copy = tmp_path / file.relative_to(conf_dir())
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(file.read_text())
    (tmp_path / "model" / "mine.yaml").write_text(
        "kind: gpt\nvocab: 300\nlayers: 7\nheads: 1\nwidth: 8\nseq_len: 16\nexperts: null\n"
    )
    assert decoder_of(compose_spec(["model=mine"], tmp_path)).layers == 7
    assert group_options(tmp_path)["model"] == sorted([*group_options(conf_dir())["model"], "mine"])


def project(root: Path, **options: str) -> Path:
    """With a config tree of its own: text by group and name, as model__mine."""
    for name, text in options.items():
        file = root / "conf" / f"{name.replace('__', '/')}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


SITE = "defaults: [slurm, _self_]\nslurm: {partition: gpu}\n"


def test_a_projects_own_tree_adds_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = "# @package _global_\ndefaults: [{override /cluster: mine}]\nname: first\n"
    root = project(tmp_path / "it's mine", cluster__mine=SITE, experiment__first=experiment)
    (root / "conf" / "config.yaml").write_text("another: program's\n")
    monkeypatch.chdir(root)
    for choice in ("cluster=mine", "experiment=first"):
        spec = compose_spec([choice])
        assert spec.cluster.slurm is not None
        assert (spec.cluster.slurm.partition, spec.cluster.slurm.notice_s) == ("gpu", 120)
    assert compose_spec([]) == compose_spec([], conf_dir())
    (line,) = refusal("cluster=yours")
    assert "mine" in line


def test_two_options_of_one_name_are_refused_where_one_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = (conf_dir() / "optim" / "adamw.yaml").read_text()
    monkeypatch.chdir(project(tmp_path, cluster__slurm=SITE, optim__adamw=same))
    compose_spec([])
    (line,) = refusal("cluster=slurm")
    assert line.startswith(f"cluster: {tmp_path}/conf/cluster/slurm.yaml has the same name as one")
