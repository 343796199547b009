"""What is written down of packages and tools in several places is the same in each."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

from docs.hooks import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NEEDED_BY_ITSELF = {"hpckit"}


def test_the_hooks_of_commits_are_what_make_lint_runs() -> None:
    rules = (ROOT / "Makefile").read_text("utf-8")
    recipe = re.findall(r"^lint:.*\n((?:\t.*\n)+)", rules, re.MULTILINE)[0]
    typed = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    (repo,) = config["repos"]
    hooks = [hook["entry"] for hook in repo["hooks"]]
    assert [line.removesuffix(" .") for line in typed] == hooks
    assert {hook["language"] for hook in repo["hooks"]} == {"system"}, "tools of .venv, no others"


def test_the_page_of_sites_names_every_extra() -> None:
    table = (ROOT / "docs/site.md").read_text("utf-8").partition("## Extras")[2]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)[1:]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == PROJECT["optional-dependencies"].keys()


def test_pages_tell_the_pythons_that_the_metadata_tells() -> None:
    (told,) = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python ::" in text}
    assert f"Tested with Python {told} alone" in (ROOT / "docs/site.md").read_text("utf-8")
    assert f"Python {told} " in (ROOT / "README.md").read_text("utf-8")


def test_each_dependency_has_a_version_that_the_tests_use() -> None:
    fixed = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if "==" in line
    }
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    names = {re.split(r"[<>=\[ ]", text)[0].lower().replace("_", "-") for text in asked}
    assert names - NEEDED_BY_ITSELF - fixed == set()
