"""Imports point one way, and nothing on the login node imports torch."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from data import pack_folder
from tests.unit.hpckit.hpckit_parts import CHECKOUT

# Who may import whom, by the first two words of a module's name. `hpckit` itself is the face that
# users import from: it reaches for everything, lazily, and nothing inside imports from it.
MAY_IMPORT = {
    "launch": {"hpckit.launch"},
    "hpckit": {"hpckit.run", "hpckit.training"},
    "hpckit.cli": {
        *("hpckit.drill", "hpckit.launch", "hpckit.elastic", "hpckit.training", "hpckit.report"),
        *("hpckit.plan", "hpckit.run", "hpckit.doctor", "hpckit.init", "checkpointing", "data"),
    },
    "hpckit.examples": {"hpckit.launch", "hpckit.report", "hpckit.run"},
    "hpckit.init": {"hpckit.doctor", "hpckit.launch", "hpckit.run"},
    "hpckit.doctor": {"hpckit.launch", "hpckit.run", "checkpointing"},
    "hpckit.drill": {
        *("hpckit.launch", "hpckit.elastic", "hpckit.training", "hpckit.report", "hpckit.plan"),
        *("hpckit.run", "checkpointing", "data"),
    },
    "hpckit.launch": {
        *("hpckit.elastic", "hpckit.training", "hpckit.report", "hpckit.plan", "hpckit.run"),
        *("checkpointing", "data"),
    },
    "hpckit.elastic": {"hpckit.exporter", "hpckit.run", "checkpointing", "data"},
    "hpckit.exporter": {"hpckit.report", "hpckit.run"},
    "hpckit.training": {"hpckit.plan", "hpckit.run", "checkpointing", "data"},
    "hpckit.plan": {"hpckit.report", "hpckit.run", "checkpointing"},
    "hpckit.report": {"hpckit.run", "checkpointing", "data"},
    "hpckit.run": {"checkpointing", "data"},
    "checkpointing": set(),
    "data": set(),
}
OURS = {"launch", "hpckit", "checkpointing", "data"}
STARTER = CHECKOUT / "hpckit" / "init" / "starter"  # what becomes a user's code
FILES = [
    CHECKOUT / "launch.py",
    *(
        file
        for name in ("hpckit", "checkpointing", "data")
        for file in (CHECKOUT / name).rglob("*.py")
        if not file.is_relative_to(STARTER)
    ),
]


def module_name(path: Path) -> str:
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit(module: str) -> str:
    """The unit that a module of ours belongs to."""
    words = module.split(".")
    return ".".join(words[: 2 if words[0] == "hpckit" else 1])


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported anywhere in `tree`, functions and conditions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "hpckit":  # from hpckit import run: a unit, or a name of the face
                yield from (f"hpckit.{alias.name}" for alias in node.names)
            else:
                yield node.module


def test_the_units_are_all_named_here() -> None:
    assert {unit(module_name(path)) for path in FILES} == MAY_IMPORT.keys()
    assert len(FILES) > 60


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    here = unit(module_name(path))
    there = {
        unit(name)
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
        if name.split(".")[0] in OURS
    }
    assert there <= MAY_IMPORT[here] | {here}


def test_an_import_inside_a_function_counts() -> None:
    text = "def f():\n    from hpckit.training.run import x\n    import hpckit.elastic.agent\n"
    assert sorted(imported(ast.parse(text))) == ["hpckit.elastic.agent", "hpckit.training.run"]


def modules_of(*arguments: str, env: dict[str, str] | None = None) -> set[str]:
    """All modules that a Python process with `arguments` imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip() for line in lines}


@pytest.mark.parametrize(
    "module",
    [
        *("hpckit", "hpckit.launch.main", "hpckit.launch.supervise", "hpckit.launch.submit"),
        *("hpckit.launch.prepare", "hpckit.launch.follow", "hpckit.elastic.keeper"),
        *("hpckit.elastic.store", "hpckit.report.summary", "hpckit.cli.main"),
        *("hpckit.report.overview", "hpckit.launch.cancel", "hpckit.drill.campaign"),
        *("hpckit.plan.documents", "hpckit.cli.plan", "hpckit.report.page.writing"),
    ],
)
def test_what_starts_and_watches_training_does_not_import_torch(module: str) -> None:
    found = modules_of("-c", f"import {module}")
    assert module in found
    assert "torch" not in found


def test_a_dry_run_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for n in range(4):
        (tmp_path / "texts" / f"{n}.txt").write_text("text")
    pack_folder(tmp_path / "texts", tmp_path / "shards")
    words = ["model=gpt_nano", "data=shards", f"data.shards={tmp_path}/shards"]
    words += ["cluster.device=cpu", f"root={tmp_path}/runs"]
    found = modules_of(str(CHECKOUT / "launch.py"), "--dry-run", *words)
    assert "hpckit.launch.dryrun" in found
    assert "torch" not in found


def test_a_plan_does_not_import_torch(tmp_path: Path) -> None:
    code = "from hpckit.cli.main import app; app()"
    words = ["plan", "model=gpt_nano", "--card", "H100", "-o", str(tmp_path / "plan.html")]
    found = modules_of("-c", code, *words)
    assert "hpckit.plan.documents" in found
    assert "torch" not in found
