"""What is written down of packages and tools in several places is the same in each."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import hpckit
from docs.hooks import ROOT
from hpckit.distribution import (
    NAME,
    SUMMARY,
    NamedDistribution,
    conflict_in,
    describe_conflict,
    warn_of_conflict,
)
from hpckit.doctor.finding import Level
from hpckit.doctor.installation import judge
from hpckit.submit.preflight.torch_version import OLDEST
from hpckit.version import VERSION

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NEEDED_BY_ITSELF = {NAME}
OTHER = NamedDistribution("0.2.1", "CLI for SLURM")
EARLIER = NamedDistribution("0.1.0", SUMMARY)
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
    assert not BARE.search("pip install './dist/hpckit_torch-0.1.0-py3-none-any.whl[s3]'")
    said = []
    for path in (*ROOT.glob("*.*"), *(p for room in ROOMS for p in (ROOT / room).rglob("*.*"))):
        if path.is_file() and path.suffix in TEXTS:
            lines = path.read_text("utf-8").splitlines()
            said += [f"{path.relative_to(ROOT)}: {line}" for line in lines if BARE.search(line)]
    assert said == []


def test_the_version_and_the_summary_stand_at_one_place() -> None:
    assert PROJECT["description"] == SUMMARY
    assert PROJECT["dynamic"] == ["version"]
    wheels = re.findall(r"hpckit_torch-([\d.]+)-py3", (ROOT / "docs/site.md").read_text("utf-8"))
    assert set(wheels) == {VERSION} == {hpckit.__version__}


@pytest.mark.parametrize(
    ("found", "is_overwritten", "is_installed", "level"),
    [
        (None, False, False, Level.OK),  # a checkout
        (None, False, True, Level.OK),
        (EARLIER, False, False, Level.OK),  # the earlier name alone
        (EARLIER, False, True, Level.FAIL),
        (OTHER, False, False, Level.FAIL),
        (OTHER, True, True, Level.FAIL),
        (None, True, True, Level.FAIL),  # after the other one was uninstalled
    ],
)
def test_the_doctor_finds_another_distribution_in_place_of_this_one(
    found: NamedDistribution | None, is_overwritten: bool, is_installed: bool, level: Level
) -> None:
    said = judge(found, "/x", is_overwritten=is_overwritten, is_installed=is_installed)
    assert said.level is level
    assert (said.do == "") is (level is Level.OK)
    if level is Level.FAIL and found is not None:
        assert describe_conflict(found) in said.what


def test_another_distribution_in_the_same_folder_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(variable, raising=False)
    assert conflict_in(tmp_path / "none") is None
    (tmp_path / "hpckit_torch-0.1.0.dist-info").mkdir()
    assert conflict_in(tmp_path) is None
    about = tmp_path / "hpckit-0.2.1.dist-info"
    about.mkdir()
    text = f"Name: hpckit\nVersion: 0.2.1\nSummary: {OTHER.summary}\n\nSummary: x\n"
    (about / "METADATA").write_text(text)
    assert conflict_in(tmp_path) == OTHER
    warn_of_conflict(tmp_path)
    (line,) = capsys.readouterr().err.splitlines()
    assert "0.2.1 of another project" in line
    assert "pip uninstall hpckit" in line
    monkeypatch.setenv("RANK", "3")
    warn_of_conflict(tmp_path)
    assert capsys.readouterr().err == ""


def test_pages_tell_the_pythons_that_the_metadata_tells() -> None:
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    page = (ROOT / "docs/versions.md").read_text("utf-8")
    assert f"Python {versions[0]} to {versions[-1]}" in page
    assert f"Python {versions[0]} to {versions[-1]}" in (ROOT / "README.md").read_text("utf-8")
    oldest = ".".join(map(str, OLDEST))
    assert f"torch>={oldest}" in PROJECT["optional-dependencies"]["launcher"]
    assert f"torch {oldest} to " in page


def test_each_dependency_has_a_version_that_the_tests_use() -> None:
    fixed = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if "==" in line
    }
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *extras["launcher"], *extras["dev"]]
    names = {re.split(r"[<>=\[ ]", text)[0].lower().replace("_", "-") for text in asked}
    assert names - NEEDED_BY_ITSELF - fixed == set()


def test_a_machine_whose_python_is_too_old_is_told_which_one_to_get(tmp_path: Path) -> None:
    """As Ubuntu 22.04 is, with its Python 3.10."""
    for name in ("make", "sh", "grep", "sed", "cat", "sha256sum", "cut", "getconf", "awk", "touch"):
        (tmp_path / name).symlink_to(shutil.which(name) or "/none")
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    words = ["make", "--no-print-directory", f"VENV={tmp_path}/venv", f"{tmp_path}/venv/ready-run"]
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    said = []
    for given in ([], ["PYTHON=/none/python3"], [f"PYTHON={tmp_path}/python3"]):
        done = subprocess.run([*words, *given], cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode != 0
        lines = done.stderr.splitlines()
        said += [line for line in lines if not line.startswith(("make", "/bin/sh", "sh:"))]
    assert len(said) == 3, "one line each"
    assert all("does not run, or is older than 3.11" in line for line in said[1:])
    assert said[0].startswith("hpckit needs Python 3.11 or newer: uv python install 3.12")
    assert 'make PYTHON="$(uv python find 3.12)" (https://' in said[0]
