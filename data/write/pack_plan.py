"""The plan of a pack: which files of a folder become which samples, before any byte is read."""

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations, groupby, islice, pairwise
from pathlib import Path

from blake3 import blake3

from data.errors import DataError
from data.index.tar.member_names import RESERVED_EXTENSIONS, is_meta, split_name

FOLDER_LINK, BROKEN_LINK = "link to a folder", "broken link"
"""Reasons for which entries of a folder are skipped, and which its owner may not expect."""

_LEADS_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of a link that refers to nothing: also through a file, to itself, or by a name that cannot
exist."""


@dataclass(frozen=True, order=True)
class SourceFile:
    """A file to pack: its sample's key, its extension, its path relative to the source."""

    key: str
    extension: str
    name: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class FolderPlan:
    """The samples of a pack, sorted by key, and how many files were skipped for each reason."""

    samples: tuple[tuple[SourceFile, ...], ...]
    skipped: dict[str, int]

    @property
    def digest(self) -> str:
        """The BLAKE3 (hex) of names, sizes and modification times: equal for an unchanged
        source."""
        lines = (repr((f.name, f.size, f.mtime_ns)) for sample in self.samples for f in sample)
        return blake3("\n".join(lines).encode()).hexdigest()


def plan_folder(source: Path, suffixes: Sequence[str], exclude: Sequence[str]) -> FolderPlan:
    """Return the plan for the files under `source` that end in one of `suffixes` (all, if none).

    `exclude` are glob patterns for basenames and for paths relative to `source`. Hidden files and
    folders are skipped. Links to files are read as files, links to folders are not followed. Raises
    DataError if there is nothing to pack or two files would be one member; OSError.
    """
    wrong = [suffix for suffix in suffixes if not suffix.startswith(".")]
    if wrong:
        raise DataError(f"suffixes must begin with a dot, got {wrong}")
    if not source.is_dir():
        problem = "it is not a folder" if source.exists() else "it does not exist"
        raise DataError(f"cannot pack {source}: {problem}")
    skipped: Counter[str] = Counter()
    files = sorted(_select(source, tuple(s.lower() for s in suffixes), exclude, skipped))
    if not files:
        left = ", ".join(f"{n} ({why})" for why, n in skipped.items())
        wanted = f" ending in {', '.join(suffixes)}" if suffixes else ""
        left_out = f"; left out are {left}" if left else ""
        raise DataError(f"nothing to pack in {source}: it has no file{wanted}{left_out}")
    for one, two in pairwise(files):
        if (one.key, one.extension) == (two.key, two.extension):
            raise DataError(
                f"{one.name} and {two.name} in {source} would be the same member of a sample"
                " (extensions are lower-cased); rename or exclude one"
            )
    samples = tuple(tuple(group) for _, group in groupby(files, key=lambda file: file.key))
    return FolderPlan(samples, dict(sorted(skipped.items())))


def look_alike(samples: Sequence[Sequence[SourceFile]]) -> list[tuple[SourceFile, SourceFile]]:
    """Return of each sample two files that may have been meant as two samples, if it has such: two
    of one type, as `report.2020.txt` and `report.2021.txt`, or two with different numbers after the
    first dot, as `report.2020.txt` and `report.2021.json`."""
    found = list[tuple[SourceFile, SourceFile]]()
    for sample in samples:
        pairs = ((one, two) for one, two in combinations(sample, 2) if _may_be_two(one, two))
        found += islice(pairs, 1)
    return found


def _may_be_two(one: SourceFile, two: SourceFile) -> bool:
    stem, _, kind = one.extension.rpartition(".")
    other_stem, _, other_kind = two.extension.rpartition(".")
    numbers = stem[:1].isdigit() + other_stem[:1].isdigit()
    if stem == other_stem:
        return False
    return (kind == other_kind and (numbers > 0 or bool(stem and other_stem))) or numbers == 2


def _select(
    source: Path, suffixes: tuple[str, ...], exclude: Sequence[str], skipped: Counter[str]
) -> Iterator[SourceFile]:
    for name in _walk(source, exclude, skipped):
        if suffixes and not name.lower().endswith(suffixes):
            continue
        path = source / name
        try:
            status = path.stat()
        except OSError as error:
            if error.errno not in _LEADS_NOWHERE or not path.is_symlink():
                raise
            skipped[BROKEN_LINK] += 1
            continue
        split = split_name(name)
        if not stat.S_ISREG(status.st_mode):
            skipped["not a file"] += 1
        elif is_meta(name) or (split and split[1] in RESERVED_EXTENSIONS):
            skipped["reserved name"] += 1
        elif split is None or not split[1]:
            skipped["no extension"] += 1
        else:
            yield SourceFile(*split, name, status.st_size, status.st_mtime_ns)


def _walk(source: Path, exclude: Sequence[str], skipped: Counter[str]) -> Iterator[str]:
    """Yield relative names of all entries that are not folders. No link to a folder is followed, so
    the walk ends."""
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(source / folder) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.name.startswith("."):
                    skipped["hidden"] += 1
                elif any(fnmatchcase(entry.name, p) or fnmatchcase(name, p) for p in exclude):
                    skipped["excluded"] += 1
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                elif _leads_to_folder(entry):
                    skipped[FOLDER_LINK] += 1
                else:
                    yield name


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            return False
        raise
