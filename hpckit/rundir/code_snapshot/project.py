"""The folder of the user's code: where it is. It imports neither the spec nor what copies code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpckit.config.config_trees import has_tree
from hpckit.rundir.code_snapshot.git_command import git_output


@dataclass(frozen=True)
class Project:
    """The folder of the user's code."""

    root: Path
    git: bool


def find_project(cwd: Path) -> Project:
    """Returns the git work tree that holds `cwd`, or the nearest folder in it with its own config
    tree; without git, `cwd` itself."""
    here, top = cwd.resolve(), git_output(cwd, "rev-parse", "--show-toplevel")
    if not top:
        return Project(here, False)
    root = Path(top.removesuffix("\n"))
    inside = (folder for folder in (here, *here.parents) if folder.is_relative_to(root))
    return Project(next(filter(has_tree, inside), root), True)
