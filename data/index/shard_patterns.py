"""From the patterns that a user gives for a dataset to the list of its shard files."""

import difflib
import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from data.errors import DataError, NoShardsError, shown

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)(?:\.\.([1-9]\d*))?\}")
_BRACES = re.compile(r"[{},]")
_MOST_NESTED = 50
_MOST_NAMES = 10_000_000  # of a pattern: a slip of the finger must not take all memory


def find_shards(shards: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """Return the shard files, absolute, in the order of the dataset.

    Each item is a tar, a folder (all its `*.tar`, sorted), a glob (sorted; `**` stands for folders
    at any depth), or a pattern with `{000000..000012}` ranges or `{train,val}` words (in order),
    which may be nested.
    Raises DataError if an item matches nothing, or if the same file comes twice.
    """
    items = [shards] if isinstance(shards, str | Path) else list(shards)
    if not items:
        raise DataError("no shards given: expected a folder, a glob, a range or a list of tars")
    found = [path.absolute() for item in items for path in _expand(item)]
    seen: set[Path] = set()
    for path in found:
        if (target := path.resolve()) in seen:
            raise DataError(f"shard {path} is given twice; its samples would be used twice")
        seen.add(target)
    return tuple(found)


def expand_ranges(pattern: str, *, choices: bool = True) -> list[str]:
    """Replace each `{first..last}` and `{first..last..step}` by its numbers, zero-padded like
    `first`, and each `{train,val}` by its words, as a shell does: all combinations. Words may have
    braces of their own: `{train-{0..3},val}`.

    Args:
        choices: whether words are replaced too; a command has such braces of its own.

    Raises DataError for a range that runs backwards, for more names than a dataset has shards, and
    for braces that are nested too deeply.
    """
    return _expanded(pattern, pattern, choices)


def _expanded(part: str, pattern: str, choices: bool) -> list[str]:
    """Return the names that a part of a pattern stands for."""
    names, at = [""], 0
    while (found := _next_braces(part, at, pattern, choices)) is not None:
        begin, end, words = found
        if len(names) * len(words) > _MOST_NAMES:
            raise _too_many(pattern, len(names) * len(words))
        names = [f"{name}{part[at:begin]}{word}" for name in names for word in words]
        at = end
    return [f"{name}{part[at:]}" for name in names]


def _next_braces(
    part: str, at: int, pattern: str, choices: bool
) -> tuple[int, int, Sequence[str]] | None:
    """Return where the next braces that stand for words begin and end, and the words; other braces
    are characters like any."""
    while (begin := part.find("{", at)) >= 0:
        if (match := _RANGE.match(part, begin)) is not None:
            return begin, match.end(), _numbers(match, pattern)
        commas = _commas_and_end(part, begin, pattern) if choices else []
        if len(commas) > 1:
            starts = [begin, *commas[:-1]]
            each = [part[a + 1 : b] for a, b in zip(starts, commas, strict=True)]
            words = [name for word in each for name in _expanded(word, pattern, choices)]
            return begin, commas[-1] + 1, words
        at = begin + 1
    return None


def _commas_and_end(part: str, begin: int, pattern: str) -> list[int]:
    """Return where the commas between the words of the braces at `begin` are, and where these are
    closed; empty if they are not."""
    found, depth = [], 0
    for match in _BRACES.finditer(part, begin):
        depth += {"{": 1, "}": -1, ",": 0}[match.group()]
        if depth > _MOST_NESTED:
            problem = f"has braces within more than {_MOST_NESTED} others"
            raise DataError(f"{shown(pattern)!r} {problem}; write the shards as a list")
        if (depth <= 1 and match.group() == ",") or depth == 0:
            found.append(match.start())
        if depth == 0:
            return found
    return []


def _numbers(match: "re.Match[str]", pattern: str) -> Sequence[str]:
    """Return the numbers of a range, as text."""
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if first > last:
        raise DataError(f"shard range {match.group()} of {shown(pattern)!r} runs backwards")
    if (count := (last - first) // step + 1) > _MOST_NAMES:
        raise _too_many(pattern, count)
    return [f"{number:0{len(match[1])}d}" for number in range(first, last + 1, step)]


def _too_many(pattern: str, count: int) -> DataError:
    return DataError(f"{shown(pattern)!r} stands for {count:,} shards, more than {_MOST_NAMES:,}")


def _expand(item: str | Path) -> list[Path]:
    if "://" in str(item):
        raise DataError(f"shards at {item}: only local files and mounted folders can be opened")
    path = Path(item).expanduser()
    if path.exists():
        return _shards_at(path)
    return [shard for pattern in _expand_names(str(path)) for shard in _match(pattern)]


def _shards_at(path: Path) -> list[Path]:
    """Return a file, or all tars of a folder. Raises NoShardsError."""
    if not path.is_dir():
        return [path]
    if not (found := tars_of(path)):
        raise NoShardsError(
            f"no shards: looked for {path / '*.tar'}, but the folder has no tar; "
            f"`hpckit data pack {path} SHARDS` makes shards of its files"
        )
    return found


def tars_of(folder: Path) -> list[Path]:
    """Return the tars of a folder, sorted."""
    return [path for path in entries_of(folder) if path.name.endswith(".tar")]


def entries_of(folder: Path) -> list[Path]:
    """Return what is in a folder, sorted, but for hidden files, such as the `._x.tar` that macOS
    writes beside `x.tar`. Raises DataError."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be listed: {error.strerror}") from error


def _match(pattern: str) -> list[Path]:
    found = files_at(pattern)
    if not pattern.endswith(".tar") and found == [Path(pattern)]:
        return _shards_at(found[0])
    if not found:
        is_open = pattern.count("{") > pattern.count("}")
        hint = " (a brace is not closed)" if is_open else ""
        raise NoShardsError(
            f"no shards: looked for {pattern}{hint}, but nothing matches; "
            f"{_describe_nearest(pattern)}"
        )
    return found


def find_files(path: Path, what: str) -> list[Path]:
    """Return the files of a path, which may be a glob or have ranges, as `find_shards` does.

    Args:
        what: their name in the error.

    Raises NoShardsError if the path, or one of a range, matches nothing.
    """
    found: list[Path] = []
    for pattern in _expand_names(str(path)):
        if not (files := files_at(pattern)):
            raise NoShardsError(f"no {what}: looked for {pattern}, nothing is there")
        found += files
    return found


def files_at(pattern: str) -> list[Path]:
    """Return the file of that name, or those that a glob matches, sorted; empty if there are
    none."""
    if os.path.lexists(pattern):
        return [Path(pattern)]
    found = glob.glob(_escape_folders(pattern), recursive=True)  # noqa: PTH207 (absolute patterns)
    return [Path(name) for name in sorted(found)]


def refuse_twice(paths: Iterable[str | Path], what: str) -> None:
    """Raise DataError if a file is given twice, whose `what` would be seen twice."""
    seen: set[Path] = set()
    for path in paths:
        if (target := Path(path).resolve()) in seen:
            raise DataError(f"{path} is given twice; its {what} would be seen twice")
        seen.add(target)


def _expand_names(pattern: str) -> list[str]:
    """Replace ranges as `expand_ranges`, but those in the names of folders that exist under these
    very names."""
    folder, rest = _existing_folder(pattern)
    return [str(folder / name) for name in expand_ranges(rest)]


def _escape_folders(pattern: str) -> str:
    """Return a glob in which folders that exist under their very names, such as `lr=[1,2]`, stand
    for themselves alone."""
    folder, rest = _existing_folder(pattern)
    return str(Path(glob.escape(str(folder))) / rest)


def _existing_folder(pattern: str) -> tuple[Path, str]:
    """Return a pattern as the folder at its beginning that exists under its very name, and the
    rest."""
    folder, parts = Path(Path(pattern).anchor), Path(pattern).parts
    for number, part in enumerate(parts[len(folder.parts) :], start=len(folder.parts)):
        if not (folder / part).is_dir():
            return folder, str(Path(*parts[number:]))
        folder /= part
    return folder, ""


def _describe_nearest(pattern: str) -> str:
    """Describe the content of the nearest existing folder, so that a typing error can be seen."""
    whole = Path(pattern).absolute()
    folder = next(path for path in whole.parents if path.is_dir())
    try:
        names = [path.name for path in entries_of(folder)]
    except DataError as error:
        return str(error)
    tars = [name for name in names if name.endswith(".tar")]
    if tars:
        return f"{folder} has {len(tars)} tar{'' if len(tars) == 1 else 's'}, such as {tars[0]}"
    near = difflib.get_close_matches(whole.relative_to(folder).parts[0], names, n=1)
    return f"did you mean {folder / near[0]}?" if near else f"{folder} has no tar"
