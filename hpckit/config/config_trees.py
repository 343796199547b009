"""Config trees: hpckit's own `conf/`, and that of the user's project, which adds options to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hpckit.config.renamed_keys import earlier_names
from hpckit.config.spec_error import SpecError

Groups = Mapping[str, list[str]]
"""Options of each config group."""


def packaged(name: str, what: str) -> Path:
    """Returns a folder that is distributed with hpckit and holds the file `what`: inside the
    installed package, or beside it in a checkout.

    Raises:
        SpecError: neither of them has the file.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / name, package.parent / name):
        if (folder / what).is_file():
            return folder
    raise SpecError([f"no {name}/{what} in {package} or beside it; is the installation complete?"])


def conf_dir() -> Path:
    """Returns hpckit's own config tree.

    Raises:
        SpecError: it does not exist.
    """
    return packaged("conf", "config.yaml")


def project_tree(root: Path) -> Path | None:
    """Returns the config tree of the project in `root`, or None if it has none or is hpckit
    itself."""
    tree = root / "conf"
    return tree if has_tree(root) and not tree.samefile(conf_dir()) else None


def has_tree(root: Path) -> bool:
    """Returns whether `root/conf` has a folder with the name of one of hpckit's groups."""
    names = [name for group in _folders(conf_dir()) for name in group_folders(group.name)]
    return any((root / "conf" / name).is_dir() for name in names)


def group_folders(group: str) -> list[str]:
    """Returns the names that the folder of a group may have in a project: the present name, then
    those of earlier releases."""
    return [group, *(old for old, new in earlier_names(()) if new == group)]


def group_options(conf: Path, yours: Path | None = None) -> dict[str, list[str]]:
    """Returns each config group of `conf` with its options and those that `yours` adds, both
    sorted."""
    trees = [conf] if yours is None else [conf, yours]
    return {
        group.name: sorted(
            {
                file.stem
                for tree in trees
                for name in group_folders(group.name)
                for file in (tree / name).glob("*.yaml")
            }
        )
        for group in _folders(conf)
    }


def ambiguous(
    choices: Mapping[str, str | Iterable[str] | None], conf: Path, yours: Path
) -> list[str]:
    """Returns a line for each chosen option that both trees have with different content."""
    found = []
    for group, chosen in choices.items():
        for option in [chosen] if isinstance(chosen, str) or chosen is None else list(chosen):
            ours = conf / group / f"{option}.yaml"
            for name in group_folders(group):
                theirs = yours / name / f"{option}.yaml"
                if ours.is_file() and theirs.is_file() and ours.read_bytes() != theirs.read_bytes():
                    found.append(
                        f"{group}: {theirs} has the same name as one of hpckit's own; rename it"
                    )
    return found


def _folders(conf: Path) -> list[Path]:
    return sorted(folder for folder in conf.iterdir() if folder.is_dir())
