"""What is installed from the wheel, far from the checkout: the way of the README, by its commands.

The wheel is built from the sdist, so both are whole. Beside it there is what its metadata asks for,
and pytest, and nothing else: links to those packages of the tests' own environment. To have pip
fetch them anew takes two minutes, and shows no more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hpckit.init.project_files import WRAPPERS
from hpckit.rundir.directory import RunDir
from tests.integration.run.runs import REPO, end_leftovers, history

PATIENCE_S = 300.0


@dataclass(frozen=True)
class Place:
    """A folder of somebody who has installed the wheel."""

    folder: Path
    binaries: Path
    env: dict[str, str]

    def run(self, *words: str, at: str = "") -> str:
        """What a command of the environment prints; it succeeds."""
        done = subprocess.run(
            [str(self.binaries / words[0]), *words[1:]],
            cwd=self.folder / at,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _build("sdist", REPO, folder)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
        packed.extractall(folder / "source", filter="data")
    _build("wheel", next((folder / "source").iterdir()), folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("far")
    environment = folder / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (about,) = packages.glob("hpckit_torch-*.dist-info")
    needed = required(Distribution.at(about), ["launcher"])
    for name in installed_for([*needed, Requirement("pytest")]):
        (packages / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    subprocess.run([*pip, "check"], check=True)
    for name in ("home", "work/data", "work/checkpointing"):
        (folder / name).mkdir(parents=True)
    (folder / "work" / "data" / "numbers.csv").write_text("1,2\n")
    (folder / "work" / "checkpointing" / "notes.txt").write_text("my own\n")
    names = ("PATH", "LANG", "TMPDIR", "OMP_WAIT_POLICY")  # the last as of the whole suite
    kept = {name: os.environ[name] for name in names if name in os.environ}
    env = {**kept, "HOME": str(folder / "home"), "COLUMNS": "200"}
    return Place(folder / "work", environment / "bin", env)


def installed_for(asked: Iterable[Requirement]) -> set[str]:
    """Files and folders of the tests' packages that `asked` needs, and what these need, and so on;
    each of them is of a version that was asked for."""
    names: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(asked)
    while waiting:
        one = waiting.pop()
        found = distribution(one.name)
        assert one.specifier.contains(found.version, prereleases=True), one
        tops = {file.parts[0] for file in found.files or ()}
        names |= {top for top in tops - {"..", "__pycache__"} if not top.startswith("/")}
        if (found.name, frozenset(one.extras)) not in seen:
            seen.add((found.name, frozenset(one.extras)))
            waiting += required(found, one.extras)
    return names


def required(found: Distribution, extras: Iterable[str] = ()) -> list[Requirement]:
    """What a distribution needs here, with these extras of it."""
    said = [Requirement(text) for text in found.requires or ()]
    return [
        one
        for one in said
        if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("", *extras))
    ]


def _build(kind: str, source: Path, into: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)


def test_the_wheel_holds_what_is_not_code_too(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        about = packed.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    conf = {f"hpckit/{f.relative_to(REPO)}" for f in (REPO / "conf").rglob("*.yaml")}
    assert conf <= names
    assert {f"hpckit/slurm/{name}" for name in WRAPPERS} <= names
    assert {f"{name}/py.typed" for name in ("hpckit", "checkpointing", "data")} <= names
    assert {name.split("/")[0] for name in names} == {
        *("hpckit", "checkpointing", "data", next(n.split("/")[0] for n in names if "info" in n))
    }
    assert "License-Expression: Apache-2.0" in about


def test_nothing_is_there_that_was_not_asked_for(place: Place) -> None:
    look = "from importlib.util import find_spec as f; print(*filter(f, {}))"
    optional = ("matplotlib", "wandb", "mlflow", "optuna", "tokenizers", "transformers", "s3fs")
    assert place.run("python", "-c", look.format(optional)).split() == []


def test_the_way_of_the_readme(place: Place) -> None:
    manual = place.run("hpckit", "launch", "--help")
    assert manual.startswith("hpckit launch - ")
    assert "launch.py" not in manual
    code = "import hpckit, checkpointing, data; print(hpckit.__file__)"
    assert str(place.binaries.parent) in place.run("python", "-c", code)
    short = ("train.steps=12", "model=gpt_nano", "debug=none", "launch.nodes=1")
    try:
        said = place.run(
            *("hpckit", "launch", "experiment=demo", *short, "cluster.device=cpu"),
            *("optim.warmup_steps=2", "checkpoint.every_steps=5"),
        )
    finally:
        end_leftovers(place.folder / "runs", "demo-*")
    assert "done: reached the last step" in said
    (run,) = (place.folder / "runs").glob("demo-*")
    assert (run / "code" / "hpckit" / "conf" / "config.yaml").is_file()
    assert (run / "code" / "data" / "__init__.py").is_file(), "hpckit's, beside my own data"
    listed = json.loads(place.run("hpckit", "ckpt", "ls", str(run), "--json"))
    assert 12 in [one["step"] for one in listed["checkpoints"]]
    place.run("hpckit", "ckpt", "verify", str(run))
    assert run.name in place.run("hpckit", "status")
    assert "done" in place.run("hpckit", "why", run.name)


def test_a_project_begun_by_init_trains_and_is_preempted(place: Place) -> None:
    made = place.run("hpckit", "init", "mine", "--only", "starter", "--only", "wrappers")
    mine = place.folder / "mine"
    written = {path for path in mine.rglob("*") if path.is_file()}
    assert {Path(line.split()[1]) for line in made.splitlines() if line.startswith("wrote")} == {
        path.relative_to(place.folder) for path in written
    }
    for name in WRAPPERS:
        assert (mine / "slurm" / name).read_text() == (REPO / "slurm" / name).read_text()
    assert os.access(mine / "slurm" / "interactive.sh", os.X_OK)
    words = (
        "train.steps=300",
        "debug=drill",
        "debug.drill.preempt_at=[4]",
        "debug.drill.nodes=[1]",
    )
    small = (
        "user_config.width=16",
        "user_config.length=32",
        "cluster.device=cpu",
        "launch.threads_per_worker=1",
    )
    try:
        place.run("hpckit", "launch", "experiment=first", *words, *small, at="mine")
    finally:
        end_leftovers(mine / "runs", "first-*")
    (run,) = (mine / "runs").glob("first-*")
    story = history(RunDir(run))
    assert "preempted" in [life.end for life in story.lives]
    assert (story.lives[-1].end, story.steps_kept) == ("done", 300)
    assert "2 passed" in place.run("python", "-m", "pytest", "-p", "no:cacheprovider", at="mine")
