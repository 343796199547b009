"""The parameters by which a function that evaluates asks for the weights."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hpckit.submit.preflight.evaluation_entry import evaluation_entry_problems, parameter_problem
from tests.unit.hpckit.specs_and_processes import make_spec


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ("model", None),
        ("cfg, load, *, step, device", None),
        ("safetensors, limit=10", None),
        ("cfg", "needs one of the parameters model, load, safetensors"),
        ("model, dataset", "has the parameter dataset"),
        ("model, /", "has parameters without names"),
    ],
)
def test_parameters_are_named_after_what_they_get(parameters: str, problem: str | None) -> None:
    (node,) = ast.parse(f"def evaluate({parameters}): ...").body
    assert isinstance(node, ast.FunctionDef)
    found = parameter_problem(node.args, builds_model=True)
    assert found is None if problem is None else problem in str(found)


def test_a_model_of_the_users_own_is_not_built_for_them(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def evaluate(model): ...\n")
    spec = make_spec({"entry": "mine:train", "eval.entry": "mine:evaluate"})
    (problem,) = evaluation_entry_problems(spec, tmp_path)
    assert problem.startswith("eval.entry: mine:evaluate")
    assert "use load and call load" in problem
    ours = make_spec({"eval.entry": "mine:evaluate"})
    assert evaluation_entry_problems(ours, tmp_path) == []
    (missing,) = evaluation_entry_problems(make_spec({"eval.entry": "mine:eval"}), tmp_path)
    assert missing.startswith("eval.entry: ")
    assert "defines no function eval" in missing
