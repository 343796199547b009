"""Every earlier spelling of a key, a value or an option means the same as the present one, wherever
it may be typed or stored, and says its successor once."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpckit.config.earlier_versions import VERSION, VERSION_KEY
from hpckit.config.renamed_keys import (
    RENAMED,
    BothSpellingsError,
    current_key,
    current_overrides,
    current_values,
    first_values,
)
from hpckit.config.run_identity import identity
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import (
    SpecError,
    all_keys,
    dump_spec,
    parse_spec,
    read_spec,
    spec_values,
    stored_version,
)
from hpckit.rundir.code_snapshot.snapshot import find_project
from hpckit.submit.arrays.override_product import multiply
from hpckit.submit.compose import amend_spec, compose_spec
from hpckit.submit.manual_page import key_reference
from tests.unit.hpckit.specs_and_processes import make_spec, make_values

BASE = ["model=gpt_nano", "cluster.device=cpu"]
CUDA, MOE, WSD = "cluster.device=cuda", "model=gpt_moe_nano", "optim.schedule=wsd"
OVERRIDES = [
    (["start=checkpoint", "start.path=/r"], ["init_from=checkpoint", "init_from.path=/r"]),
    (["start=none"], ["init_from=none"]),
    (["app.width=3", "+app.a.b=[1,x]"], ["user_config.width=3", "+user_config.a.b=[1,x]"]),
    (["app={a: 1}"], ["user_config={a: 1}"]),
    (["launch.gpus_per_node=4"], ["launch.nproc_per_node=4"]),
    (["++launch.gpus_per_node=4"], ["++launch.nproc_per_node=4"]),
    (["retry.in_place=7"], ["retry.max_restarts=7"]),
    (["parallel.reduce=each"], ["parallel.no_sync=false"]),
    (["parallel.reduce='last'"], ["parallel.no_sync=true"]),
    (["memory.recompute=full"], ["memory.activation_checkpointing=full"]),
    ([CUDA, "memory.offload=true"], [CUDA, "memory.cpu_offload=true"]),
    (["memory=low"], ["memory=activation_checkpointing"]),
    ([MOE, "model.experts.per_token=1"], [MOE, "model.experts.top_k=1"]),
    (
        ["init_from=huggingface", "init_from.path=/m", "lora=default", "lora.layers=[mlp]"],
        ["init_from=huggingface", "init_from.path=/m", "lora=default", "lora.target_modules=[mlp]"],
    ),
    (
        ["data.text=tokens", "data.boundaries=false"],
        ["data.text=tokens", "data.document_mask=false"],
    ),
    ([WSD, "optim.decay_share=0.2"], [WSD, "optim.decay_ratio=0.2"]),
    (["checkpoint.staging=slots"], ["checkpoint.staging=buffers"]),
    (["name='n${launch.gpus_per_node}'"], ["name='n${launch.nproc_per_node}'"]),
]


def composed(words: list[str]) -> tuple[RunSpec, list[str]]:
    """The spec of these overrides, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spec = compose_spec([*BASE, *words])
    return spec, [str(one.message) for one in caught if one.category is FutureWarning]


def changed(old: list[str], new: list[str]) -> int:
    return sum(one != other for one, other in zip(old, new, strict=True))


@pytest.mark.parametrize(("old", "new"), OVERRIDES, ids=lambda words: " ".join(words))
def test_an_earlier_override_composes_the_same_spec_with_one_warning(
    old: list[str], new: list[str]
) -> None:
    spec, said = composed(old)
    expected, silence = composed(new)
    assert spec == expected
    assert silence == []
    told = [line for line in said if line.endswith(" now")]
    assert len(told) == (changed(old, new) if "$" not in old[0] else len(told))
    assert len(set(told)) == len(told)


def test_a_spelling_is_said_once_in_a_process() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            current_overrides(["launch.gpus_per_node=99"])
    said = [str(one.message) for one in caught]
    assert said == ["launch.gpus_per_node is launch.nproc_per_node now"]


def test_a_value_that_changed_is_said_with_its_key() -> None:
    with pytest.warns(FutureWarning) as caught:
        current_overrides(["parallel.reduce=each", "memory=low", "checkpoint.staging=slots"])
    assert [str(one.message) for one in caught] == [
        "parallel.reduce=each is parallel.no_sync=false now",
        "memory=low is memory=activation_checkpointing now",
        "checkpoint.staging=slots is checkpoint.staging=buffers now",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("launch.gpus_per_node=4", "launch.nproc_per_node=4"),
        ("start=none", "init_from=none"),
        ("app.x=1", "+user_config.x=1"),
        ("parallel.reduce=last", "parallel.no_sync=true"),
    ],
)
def test_both_spellings_of_a_key_are_refused(old: str, new: str) -> None:
    for words in ([old, new], [new, old]):
        with pytest.raises(SpecError) as caught:
            compose_spec([*BASE, *words])
        (line,) = caught.value.violations
        assert "both are given" in line
    names = [word.lstrip("+").partition("=")[0] for word in (old, new)]
    assert line.startswith(f"{names[0]}: is {names[1]} now")


def test_both_spellings_in_stored_values_are_refused() -> None:
    values = make_values()
    values["launch"]["gpus_per_node"] = 2
    with pytest.raises(SpecError, match="both are given"):
        parse_spec(values)


def earlier(spec: RunSpec) -> dict[str, Any]:
    """The values of a spec as a release before the new names has stored them."""
    return first_values(spec_values(spec))


SPECS = {
    "moe": lambda: make_spec({"parallel.no_sync": False}, model="gpt_moe_nano"),
    "tuned": lambda: make_spec({"user_config": {"app": 1}}, start="checkpoint", lora="default"),
    "offload": lambda: make_spec({"cluster.device": "cuda", "memory.cpu_offload": True}),
    "buckets": lambda: make_spec({"checkpoint.staging": "buckets"}),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_stored_spec_with_earlier_names_is_the_same_run(name: str, tmp_path: Path) -> None:
    spec, path = SPECS[name](), tmp_path / "spec.yaml"
    old = earlier(spec)
    assert {"start", "app"} <= old.keys()
    assert {"gpus_per_node"} <= old["launch"].keys()
    path.write_text(yaml.safe_dump(old))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody has typed it
        read = read_spec(path)
    assert read == spec
    assert identity(read) == identity(spec)


def test_each_earlier_name_is_said_of_values_that_somebody_wrote() -> None:
    old = earlier(make_spec(start="checkpoint", lora="default", model="gpt_nano"))
    with pytest.warns(FutureWarning) as caught:
        parse_spec(old, origin="mine.yaml")
    said = [str(one.message) for one in caught]
    assert len(said) == len(RENAMED) - 1  # all but experts
    assert len(set(said)) == len(said)
    assert {one.filename for one in caught} == {"mine.yaml"}


def test_values_with_present_names_are_left_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = make_values()
        assert current_values(values, origin="x") == values


def test_every_row_of_the_table_names_a_key_and_no_present_one() -> None:
    keys = {".".join(path) for path in all_keys()}
    for one in RENAMED:
        assert one.new in keys
        assert one.old == one.new or one.old not in keys
        assert one.old.rpartition(".")[0] == one.new.rpartition(".")[0]
        for old, new in one.values.items():
            assert (one.present(old), one.earlier(new)) == (new, old)
        assert one.present("other") == one.earlier("other") == "other"


def test_a_stored_spec_says_its_version_and_one_of_a_later_release_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(dump_spec(make_spec()))
    stored = yaml.safe_load(path.read_text())
    assert next(iter(stored)) == VERSION_KEY
    assert stored[VERSION_KEY] == VERSION
    path.write_text(yaml.safe_dump({**stored, VERSION_KEY: VERSION + 1, "newer": 1}))
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    (line,) = caught.value.violations
    assert line.startswith(f"{path}: {VERSION_KEY}: a later release of hpckit wrote this spec")


def test_a_spec_for_code_of_the_first_version_has_its_names(tmp_path: Path) -> None:
    spec, path = make_spec({"parallel.no_sync": False}), tmp_path / "spec.yaml"
    path.write_text(dump_spec(spec, 1))
    stored = yaml.safe_load(path.read_text())
    assert stored.keys() >= {"start", "app"}
    assert not stored.keys() & {VERSION_KEY, "init_from", "user_config"}
    assert stored["parallel"]["reduce"] == "each"
    assert "save_s" in stored["hang"], "its value is not the one that was implied"
    assert "check" not in stored["data"]
    assert (read_spec(path), stored_version(path)) == (spec, 1)
    path.write_text(dump_spec(spec))
    assert stored_version(path) == VERSION


def test_a_sweep_takes_earlier_names() -> None:
    (first, second) = multiply(["parallel.reduce=last,each"])
    with pytest.warns(FutureWarning):
        specs = [compose_spec([*BASE, *words]) for words in (first, second)]
    assert [spec.parallel.no_sync for spec in specs] == [True, False]


def test_a_run_is_amended_by_earlier_names() -> None:
    before = make_spec()
    with pytest.warns(FutureWarning):
        after = amend_spec(before, ["memory=low", "retry.in_place=9"], None)
    expected = amend_spec(before, ["memory=activation_checkpointing", "retry.max_restarts=9"], None)
    assert after == expected


def test_an_inner_value_of_an_override_has_an_earlier_name() -> None:
    word = "model.experts={count: 4, per_token: 1, hidden: null, balance_rate: 0.1}"
    for option in ("model=gpt_moe_nano", "model=gpt_nano"):
        with pytest.warns(FutureWarning, match=r"model\.experts\.per_token is .*top_k now"):
            spec = compose_spec([option, "cluster.device=cpu", word])
        assert spec_values(spec)["model"]["experts"]["top_k"] == 1


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("launch.gpu_per_node=3", "launch.nproc_per_node"),
        ("memory.recomput=full", "memory.activation_checkpointing"),
        ("strat=none", "init_from"),
        ("parallel.no_snyc=true", "parallel.no_sync"),
    ],
)
def test_a_misspelt_earlier_name_suggests_the_present_one(typed: str, meant: str) -> None:
    with pytest.raises(SpecError) as caught:
        compose_spec([*BASE, typed])
    assert caught.value.violations == [
        f"{typed.partition('=')[0]}: unknown key; did you mean {meant}?"
    ]


def test_the_reference_of_keys_takes_an_earlier_prefix() -> None:
    assert key_reference("launch.gpus_per_node") == key_reference("launch.nproc_per_node")
    assert key_reference("start") == key_reference("init_from")


def test_users_code_reads_attributes_by_earlier_names() -> None:
    spec = make_spec({"user_config": {"lr": 0.1}, "parallel.no_sync": False}, start="checkpoint")
    with pytest.warns(FutureWarning, match="app is user_config now"):
        assert spec.app == {"lr": 0.1}  # type: ignore[attr-defined]
    with pytest.warns(FutureWarning, match=r"launch\.gpus_per_node is"):
        assert spec.launch.gpus_per_node == 1  # type: ignore[attr-defined]
    with pytest.warns(FutureWarning):
        assert spec.parallel.reduce == "each"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'nodse'"):
        _ = spec.launch.nodse  # type: ignore[attr-defined]
    assert replace(spec.launch, nodes=2) != spec.launch
    assert asdict(spec)["user_config"] == {"lr": 0.1}


PROJECT = {
    "conf/start/mine.yaml": "kind: checkpoint\npath: /base\nstep: null\nitem: model\n",
    "conf/launch/wide.yaml": "defaults:\n  - default\n  - _self_\ngpus_per_node: 2\n",
    "conf/memory/tight.yaml": "defaults:\n  - low\n  - _self_\nloss_chunks: 4\n",
    "conf/experiment/old.yaml": """\
# @package _global_
defaults:
  - override /start: mine
  - override /launch: wide
  - override /memory: low
name: n${launch.gpus_per_node}
app:
  width: 3
parallel:
  reduce: each
retry:
  in_place: 5
checkpoint: {staging: slots}
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_files_of_a_project_have_earlier_names(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    words = [*BASE, "experiment=old"]
    with pytest.warns(FutureWarning) as caught:
        spec = compose_spec(words, project=find_project(project))
    assert spec.init_from is not None
    assert (spec.init_from.path, spec.launch.nproc_per_node, spec.name) == ("/base", 2, "n2")
    assert (spec.user_config, spec.retry.max_restarts) == ({"width": 3}, 5)
    assert spec.parallel.no_sync is False
    assert spec.memory.activation_checkpointing == "full"
    assert spec.checkpoint.staging == "buffers"
    said = [(Path(one.filename).name, str(one.message)) for one in caught]
    assert ("old.yaml", "app is user_config now") in said
    assert ("old.yaml", "start is init_from now") in said
    assert ("old.yaml", "memory=low is memory=activation_checkpointing now") in said
    assert ("wide.yaml", "launch.gpus_per_node is launch.nproc_per_node now") in said


def test_what_is_typed_wins_over_an_earlier_name_in_a_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    for word in ("launch.nproc_per_node=1", "launch.gpus_per_node=1"):
        with pytest.warns(FutureWarning):
            spec = compose_spec([*BASE, "experiment=old", word], project=find_project(project))
        assert (spec.launch.nproc_per_node, spec.name) == (1, "n1")
    with pytest.warns(FutureWarning):
        tight = compose_spec([*BASE, "memory=tight"], project=find_project(project))
    assert (tight.memory.activation_checkpointing, tight.memory.loss_chunks) == ("full", 4)


def test_a_file_with_both_spellings_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    both = "# @package _global_\nretry: {in_place: 1, max_restarts: 2}\n"
    (project / "conf/experiment/both.yaml").write_text(both)
    with pytest.raises(SpecError, match=r"retry\.in_place: is retry\.max_restarts now"):
        compose_spec([*BASE, "experiment=both"], project=find_project(project))


def test_an_option_of_the_users_own_keeps_its_name(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (project / "conf/memory/low.yaml").write_text("defaults: [default, _self_]\nloss_chunks: 2\n")
    own = "# @package _global_\ndefaults: [override /memory: low]\n"
    (project / "conf/experiment/own.yaml").write_text(own)
    for word in ("memory=low", "experiment=own"):
        spec = compose_spec([*BASE, word], project=find_project(project))
        assert (spec.memory.loss_chunks, spec.memory.activation_checkpointing) == (2, "none")


def test_current_keys() -> None:
    assert current_key("start.path") == "init_from.path"
    assert current_key("started") == "started"
    with pytest.raises(BothSpellingsError):
        current_overrides(["app.a=1", "user_config.a=2"])
