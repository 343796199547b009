"""Checks the function that evaluates checkpoints (`eval.entry`) without importing it."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path

from hpckit.config.entry_points import is_built_in
from hpckit.config.spec import RunSpec
from hpckit.submit.preflight.entry_point import definitions_of, entry_problems

WEIGHTS = ("model", "load", "safetensors")
"""Names of parameters by which the function gets the weights."""
PARAMETERS = ("cfg", *WEIGHTS, "step", "device")
"""All names of parameters that it may have."""
_KEY = "eval.entry"


def evaluation_entry_problems(spec: RunSpec, root: Path) -> list[str]:
    """Returns the reasons why an evaluation that runs the project in `root` cannot call
    `eval.entry`; empty if it can, or if there is none."""
    if spec.eval.entry is None:
        return []
    signature = partial(_signature_problems, builds_model=is_built_in(spec))
    return entry_problems(spec.eval.entry, root, _KEY, signature)


def _signature_problems(
    entry: str, source: Path, body: list[ast.stmt], *, builds_model: bool
) -> list[str]:
    name = entry.partition(":")[2]
    found = [
        parameter_problem(node.args, builds_model=builds_model)
        for node in definitions_of(body, name)
        if isinstance(node, ast.FunctionDef) and not node.decorator_list
    ]
    if not found or None in found:
        return []
    return [f"{_KEY}: {entry} ({source}) {found[-1]}"]


def parameter_problem(given: ast.arguments, *, builds_model: bool) -> str | None:
    """Returns why a function with these parameters cannot evaluate a checkpoint; None if it can.
    Pure.

    Args:
        builds_model: whether the model is one of hpckit's own.
    """
    named = [*given.args, *given.kwonlyargs]
    names = [one.arg for one in named]
    defaults = len(given.defaults) + sum(one is not None for one in given.kw_defaults)
    if given.posonlyargs:
        return f"has parameters without names; name them after {', '.join(PARAMETERS)}"
    unknown = [name for name in names if name not in PARAMETERS]
    if len(unknown) > defaults:
        return (
            f"has the parameter {unknown[0]}; hpckit knows {', '.join(PARAMETERS)}, and others "
            "need a default"
        )
    if "model" in names and not builds_model:
        return (
            "has the parameter model, which hpckit builds only for its own training functions; "
            "use load and call load({'model': your_model}), or use safetensors, a folder"
        )
    if not set(names) & set(WEIGHTS):
        return f"needs one of the parameters {', '.join(WEIGHTS)}, by which it gets the weights"
    return None
