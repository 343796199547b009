"""The files that `hpckit init` writes. None is written if one of them exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.config.config_trees import packaged
from hpckit.config.spec_parser import SpecError

WRAPPERS = ("train.sbatch", "elastic.sbatch", "interactive.sh")
_STARTER = {
    "train.py": "train.py",
    "test_train.py": "test_train.py",
    "conftest.py": "conftest.py",
    "first.yaml": "conf/experiment/first.yaml",
}


@dataclass(frozen=True)
class NewFile:
    """A file to be written."""

    name: str
    """Path relative to the project."""
    content: str
    is_program: bool = False


def starter() -> list[NewFile]:
    """Return a training function, its experiment and its test."""
    folder = Path(__file__).parent / "starter"
    files = [NewFile(to, (folder / name).read_text("utf-8")) for name, to in _STARTER.items()]
    # git ignores runs, so that the code snapshot of a run does not contain them
    return [*files, NewFile("runs/.gitignore", "*\n")]


def wrappers() -> list[NewFile]:
    """Return the scripts for users who submit jobs themselves.

    Raises:
        SpecError: this installation does not have them.
    """
    folder = packaged("slurm", WRAPPERS[0])
    return [
        NewFile(f"slurm/{name}", (folder / name).read_text("utf-8"), name.endswith(".sh"))
        for name in WRAPPERS
    ]


def write(files: Sequence[NewFile], folder: Path) -> None:
    """Write the files in `folder`, which is created if needed.

    Raises:
        SpecError: some of them exist already, and nothing was written.
        OSError: they cannot be written.
    """
    if there := [folder / file.name for file in files if (folder / file.name).exists()]:
        raise SpecError([f"{path} already exists and is not changed" for path in there])
    for file in files:
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as new:
            new.write(file.content)
        if file.is_program:
            path.chmod(path.stat().st_mode | 0o111)
