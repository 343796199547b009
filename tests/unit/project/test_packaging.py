"""What is written down of packages and tools in several places is the same in each."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

import hpckit
from docs.hooks import ROOT
from hpckit.doctor.finding import Level
from hpckit.doctor.installation import SUMMARY, judge
from hpckit.version import VERSION

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NEEDED_BY_ITSELF = {"hpckit"}
ROOMS = (
    *("hpckit", "checkpointing", "data", "docs", "slurm", "conf", "benchmarks", "examples"),
    ".ci",
)
TEXTS = (".md", ".py", ".yaml", ".toml", ".sh", ".sbatch", ".def", ".txt")


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
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == PROJECT["optional-dependencies"].keys()


BARE = re.compile(r"\binstall\b[^\n]*[\s'\"=](hpckit)(?![\w./*-])")
"""A command that has pip take the package from the index, where the name is another project's."""


def test_nobody_is_told_to_install_another_projects_package() -> None:
    assert BARE.search("pip install 'hpckit[s3]'")
    assert BARE.search("`pip install -U hpckit`")
    assert not BARE.search("pip install './dist/hpckit-0.1.0-py3-none-any.whl[s3]'")
    said = []
    for path in (*ROOT.glob("*.*"), *(p for room in ROOMS for p in (ROOT / room).rglob("*.*"))):
        if path.is_file() and path.suffix in TEXTS:
            lines = path.read_text("utf-8").splitlines()
            said += [f"{path.relative_to(ROOT)}: {line}" for line in lines if BARE.search(line)]
    assert said == []


def test_the_version_and_the_summary_stand_at_one_place() -> None:
    assert PROJECT["description"] == SUMMARY
    assert PROJECT["dynamic"] == ["version"]
    wheels = re.findall(r"hpckit-([\d.]+)-py3", (ROOT / "docs/site.md").read_text("utf-8"))
    assert set(wheels) == {VERSION} == {hpckit.__version__}
    metadata = {"Version": "0.2.1", "Summary": "CLI for SLURM"}
    for found, level in (
        (None, Level.OK),
        ({"Version": "0.1.0", "Summary": SUMMARY}, Level.OK),
        (metadata, Level.FAIL),
    ):
        assert judge(found, "/x/hpckit").level is level
    assert "0.2.1 of another project" in judge(metadata, "/x/hpckit").what


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
