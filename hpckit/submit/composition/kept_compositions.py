"""What Hydra has composed is kept in the user's cache folder, for commands of the same words.

It is found by the hash of all that it depends on: the overrides, the content of every config file,
the environment variables that these name, and the code that composes. So it is never out of date,
and the folder may be removed at any time. Nothing is kept where that cannot be known: a file that
refers to the time, or a plug-in of Hydra.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpckit.submit.composition.composed_values import ComposedValues
from hpckit.system.installed_versions import installed_version
from hpckit.system.private_folders import folder_problem, make_private

MOST_KEPT = 64
"""Compositions that are kept; the oldest ones are removed."""
_MOST_FILES, _MOST_BYTES = 500, 4 << 20
"""Of larger config trees, whose reading would take as long as composing, nothing is kept."""
_CODE = (
    *("../../config/config_trees.py", "../../config/renamed_keys.py", "hydra_values.py"),
    *("project_config_source.py", "composed_values.py", "kept_compositions.py"),
)
"""Files of the code that composes, relative to this one."""
_RESOLVER = re.compile(rb"\$\{\s*([^${}:]*?)\s*:")
_OF_ENVIRONMENT = re.compile(rb"\$\{\s*oc\.env\s*:\s*([A-Za-z_]\w*)\s*[,}]")
_NESTED = re.compile(rb"\$\{\s*\$")
_OF_VALUES = {b"oc.select", b"oc.decode", b"oc.create", b"oc.dict.keys", b"oc.dict.values"}
"""Resolvers whose results depend on nothing but the config."""


@dataclass(frozen=True)
class KeptComposition:
    """The place of one composition."""

    path: Path

    def read(self) -> ComposedValues | None:
        """Returns what is kept, or None."""
        if folder_problem(self.path.parent, is_job=False) is not None:
            return None  # others could have written it
        try:
            return ComposedValues.from_json(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, RecursionError):
            return None  # none, or a damaged one, which is composed and written anew

    def write(self, composed: ComposedValues) -> None:
        """Keeps what was composed, unless overrides were refused or it cannot be written."""
        folder = self.path.parent
        if composed.refused:
            return
        with suppress(OSError):
            make_private(folder)
            if folder_problem(folder, is_job=False) is not None:
                return
            draft = folder / f".{secrets.token_hex(8)}"
            draft.write_text(composed.to_json(), encoding="utf-8")
            draft.replace(self.path)
            _remove_oldest(folder)


def _remove_oldest(folder: Path) -> None:
    with os.scandir(folder) as entries:
        by_age = sorted((entry.stat().st_mtime, entry.path) for entry in entries)
    for _, path in by_age[:-MOST_KEPT]:
        Path(path).unlink(missing_ok=True)


def open_kept(
    overrides: Sequence[str], conf: Path, yours: Path | None, env: Mapping[str, str]
) -> KeptComposition | None:
    """Returns the place of what these overrides compose, or None if nothing is kept of them.

    Args:
        conf, yours: as in `compose_values`.
        env: the environment variables.
    """
    home = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else None)
    if home is None or not home.startswith("/"):
        return None
    name = _hash(overrides, conf, yours, env)
    return None if name is None else KeptComposition(Path(home, "hpckit", "composed", name))


def _hash(
    overrides: Sequence[str], conf: Path, yours: Path | None, env: Mapping[str, str]
) -> str | None:
    """Returns the hash of all that a composition depends on, or None if that is not known."""
    if any(os.path.isdir(os.path.join(folder, "hydra_plugins")) for folder in sys.path):  # noqa: PTH112, PTH118
        return None
    try:
        files = [
            (tree, name, content)
            for tree in (conf, yours)
            if tree is not None
            for name, content in _config_files(tree)
        ]
        code = [_state(Path(__file__).parent / name) for name in _CODE]
    except OSError:  # Hydra reports it
        return None
    if len(files) > _MOST_FILES:
        return None
    names = _variables(b"\n".join([*(c for _, _, c in files), *map(os.fsencode, overrides)]))
    if names is None:
        return None
    facts = (
        list(overrides),
        [str(conf), str(yours)],
        [(str(tree), name, hashlib.sha256(content).hexdigest()) for tree, name, content in files],
        [(name, env.get(name)) for name in names],
        code,
        [sys.version, installed_version("hydra-core"), installed_version("omegaconf")],
    )
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _variables(text: bytes) -> list[str] | None:
    """Returns the environment variables that config files and overrides name, or None if they may
    refer to something else outside of the config. Pure."""
    named = _OF_ENVIRONMENT.findall(text)
    resolvers = _RESOLVER.findall(text)
    known = sum(resolver in _OF_VALUES for resolver in resolvers) + len(named)
    if known != len(resolvers) or text.count(b"oc.env") != len(named) or _NESTED.search(text):
        return None
    return sorted({name.decode() for name in named})


def _config_files(tree: Path) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of the files of a config tree, in order.

    Raises:
        OSError: one cannot be read, or it is not known whether they are few and small.
    """
    left = _MOST_BYTES
    for name in sorted(_names(os.fspath(tree), "")):
        content = (tree / name).read_bytes()
        left -= len(content)
        if left < 0:
            raise OSError(f"{tree} is large")
        yield name, content


def _names(folder: str, inside: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _names(entry.path, f"{inside}{entry.name}/")
            elif entry.name.endswith((".yaml", ".yml")):
                yield f"{inside}{entry.name}"
            elif entry.is_dir():
                raise OSError(f"{entry.path} leads elsewhere")


def _state(path: Path) -> tuple[str, int, int]:
    """Returns the name, the size and the time of a file of the code."""
    found = path.stat()
    return path.name, found.st_size, found.st_mtime_ns
