"""A run that goes on with other keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hpckit.config.run_identity import identity
from hpckit.config.spec_parser import SpecError, read_spec, spec_values
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.rundir.directory import RunDir
from hpckit.submit.compose import amend_spec, compose_spec
from hpckit.submit.resume_overrides import identity_problems, overrides_of
from hpckit.submit.submission_files import add_amended_submission, add_submission
from hpckit.system.atomic_files import read_json
from tests.unit.hpckit.specs_and_processes import make_spec


def test_keys_and_groups_are_set_and_all_else_stays_as_it_was_stored() -> None:
    before = make_spec({"user_config": {"note": "${HOME} $(x)", "deep": {"a": 1, "b": 2}}})
    after = amend_spec(
        before,
        ["elastic=spares", "launch.nodes=4", "++user_config.deep={a: 5}", "hang.step_s=null"],
        None,
    )
    spares = compose_spec(["elastic=spares", "data.shards=/data/shards"]).elastic
    expected = spec_values(before)
    expected["elastic"] = spec_values(compose_spec(["elastic=spares"]))["elastic"]
    expected["launch"]["nodes"], expected["hang"]["step_s"] = 4, None
    expected["user_config"]["deep"]["a"] = 5
    assert after.elastic == spares != before.elastic
    assert spec_values(after) == expected


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("launch.node=4", "launch.node: unknown key; did you mean launch.nodes?"),
        ("elastic=spare", "elastic: no option 'spare'"),
        ("experiment=demo", "experiment: is a whole run"),
        ("~user_config", "~user_config: no key can be removed from a run"),
        ("launch.nodes=1,2", "launch.nodes: 'launch.nodes=1,2' is a sweep"),
        ("nodes", "nodes: is not an override"),
        ("user_config.x=${nowhere}", "user_config.x: Interpolation key 'nowhere' not found"),
    ],
)
def test_what_cannot_be_used_is_named(word: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        amend_spec(make_spec(), [word], None)
    assert caught.value.violations[0].startswith(said)


def test_what_makes_another_run_is_refused_with_what_to_type() -> None:
    before, words = make_spec(), ["name=t", "user_config.note='a b'", "optim.lr=0.5"]
    assert identity_problems(before, make_spec({"launch.nodes": 2}), words) == []
    other = make_spec({"optim.lr": 0.5, "name": "u"})
    assert identity(other) != identity(before)
    (line,) = identity_problems(before, other, words)
    assert line.startswith(f"name ({before.name} -> u), optim.lr (0.0006 -> 0.5): would make")
    assert line.endswith("hpckit launch name=t 'user_config.note='\"'\"'a b'\"'\"'' optim.lr=0.5")
    (line,) = identity_problems(before, make_spec({"root": "/elsewhere"}), words)
    assert line.startswith("root: a run stays in the directory where it started")


def test_the_new_submission_has_the_code_of_the_one_before_and_the_overrides_of_both(
    tmp_path: Path,
) -> None:
    root, run = tmp_path / "project", RunDir(tmp_path / "run")
    root.mkdir()
    run.path.mkdir()
    (root / "a.py").write_text("first\n")
    add_submission(run, make_spec(), ["train.seed=1"], Project(root, False))
    (root / "a.py").write_text("second\n")
    spec = make_spec({"launch.nodes": 2})
    assert add_amended_submission(run, spec, ["launch.nodes=2"], 1) == 2
    assert read_spec(run.path / "spec.yaml") == spec
    assert (run.path / "code" / "a.py").read_text() == "first\n"
    assert overrides_of(run, 2) == ["train.seed=1", "launch.nodes=2"]
    told = read_json(run.path / "manifest.json")
    assert (told["code_of"], told["project"]) == (1, str(root))
    assert yaml.safe_load((run.submission(1) / "overrides.yaml").read_text()) == ["train.seed=1"]
