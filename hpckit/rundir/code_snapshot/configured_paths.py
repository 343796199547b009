"""The folders and files of a spec that are inside the project but no code: run directories,
checkpoints, shards, caches."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from checkpointing import local_folder
from hpckit.config.shard_places import shard_places
from hpckit.config.spec import RunSpec

_KINDS = {
    "root": "run directories",
    "checkpoint.url": "checkpoint store",
    "checkpoint.local": "spool of checkpoints",
    "data.cache": "cache of shards",
    "data.shards": "shards",
}
_PATTERN = re.compile(r"[*?\[{]")


@dataclass(frozen=True)
class ConfiguredPaths:
    """Paths in the project that are no code, by their names relative to it."""

    folders: dict[str, str]
    """What each is, in words for people. What is in them is left out."""
    files: tuple[re.Pattern[str], ...] = ()
    """Patterns of the names of shards, whose folder may hold code as well."""

    def kind_of(self, name: str, is_folder: bool) -> str | None:
        """Returns what a file or folder is that the spec names, or None."""
        if kind := self.folders.get(name):
            return kind
        if not is_folder and any(pattern.fullmatch(name) for pattern in self.files):
            return _KINDS["data.shards"]
        return None


NO_PATHS = ConfiguredPaths({})


def configured_paths(spec: RunSpec, project: Path) -> ConfiguredPaths:
    """Returns the paths of a spec that lie in the project. A relative one is relative to it."""
    named = {
        "root": spec.root,
        "checkpoint.url": spec.checkpoint.url,
        "checkpoint.local": spec.checkpoint.local,
        "data.cache": spec.data.cache,
    }
    shards = shard_places(spec.data)
    folders, files = {}, []
    for key, text in {**named, **shards}.items():
        inside = None if text is None else _inside(text, project)
        if inside is None:
            continue
        if key in shards and _PATTERN.search(inside):
            files.append(_shards(inside))
        elif key not in shards or _is_only_data(project / inside):
            folders[inside] = _KINDS["data.shards" if key in shards else key]
    return ConfiguredPaths(folders, tuple(files))


def _inside(text: str, project: Path) -> str | None:
    """Returns a path relative to the project, or None if it is at a URL, elsewhere, or the project
    itself."""
    folder = local_folder(text)
    if folder is None:
        return None
    path = Path(os.path.normpath(project / folder.expanduser()))
    for one in (path, path.resolve()):
        for root in (project, project.resolve()):
            if one != root and one.is_relative_to(root):
                return one.relative_to(root).as_posix()
    return None


def _is_only_data(path: Path) -> bool:
    """Returns whether a folder of shards holds no module beside them."""
    return not path.is_dir() or not any(path.glob("*.py"))


def _shards(pattern: str) -> re.Pattern[str]:
    """Returns a pattern of the names of shards and of their indexes: in a brace pattern or glob,
    anything may stand for what is in brackets."""
    parts = re.split(r"\{[^}]*\}|\[[^\]]*\]|\*+|\?", pattern)
    return re.compile("[^/]*".join(map(re.escape, parts)) + r"(\.index)?")
