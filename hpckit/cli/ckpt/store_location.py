"""Opens a store, and a run in it, from the user's text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from checkpointing.format import object_keys
from checkpointing.store.store import Store
from checkpointing.store_url import RUN_IN_STORE, local_folder, meant_url
from hpckit.cli.common.command_output import listing
from hpckit.cli.common.run_argument import ROOT, similar_runs
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.system.os_errors import describe_error


@dataclass(frozen=True)
class StoreLocation:
    """An open store, and the run that the user means, if it is known."""

    text: str  # as typed by the user; of the name of a run, its directory
    store: Store
    run: str | None
    runs: tuple[str, ...]  # the existing runs, sorted
    is_guess: bool = False  # the run is one of several in the store, and the directory implies it
    directory: Path | None = None  # the run directory, if the text is one

    def only_run(self) -> str:
        """Return the run to work on.

        Raises:
            CommandUsageError: there is none, or several runs are possible.
        """
        if self.run is not None:
            return self.run
        if not self.runs:
            raise CommandUsageError(f"{self.store.url} is a store without checkpoints")
        if len(self.runs) > 1:
            raise CommandUsageError(
                f"{self.store.url} has {len(self.runs)} runs: choose one with --run: "
                f"{listing(self.runs)}"
            )
        return self.runs[0]


@dataclass(frozen=True)
class _Candidate:
    """A location where a store may be."""

    url: str
    run: str | None = None  # named by the text itself
    likely: str | None = None  # preferred if there are several
    directory: Path | None = None  # the run directory whose checkpoints they are


@contextmanager
def opened(
    text: str, run: str | None = None, *, create: bool | None = None, may_be_new: bool = False
) -> Iterator[StoreLocation]:
    """Opens the place for the duration of the block.

    Args:
        text: a store, a run in a store, or a run directory or its name below ./runs.
        run: the value of --run.
        create: whether to create a missing store; None: the command has no option for that.
        may_be_new: whether the run need not exist.

    Raises:
        CommandUsageError: there is no store, or no such run.
        StoreError: the store cannot be reached.
    """
    text = text if create else _named_run(text)
    store, candidate = _open(text, create)
    try:
        runs = run_names(store)
        which = _which(candidate, run, runs, store.url, may_be_new)
        is_guess = which not in (None, run, candidate.run)
        yield StoreLocation(text, store, which, runs, is_guess, candidate.directory)
    finally:
        store.close()


def run_names(store: Store) -> tuple[str, ...]:
    """Return the runs that have checkpoints, or have begun to save one; sorted."""
    found = set()
    for entry in store.storage.list(object_keys.RUNS):
        parsed = object_keys.parse_manifest(entry.key) or object_keys.parse_part(entry.key)
        if parsed is not None:
            found.add(parsed[0].run)
    return tuple(sorted(found))


def _named_run(text: str) -> str:
    """Return the directory of a run below ./runs whose name is given, else the text itself."""
    folder = local_folder(text)
    if not text or folder is None or folder.exists():
        return text
    below = _run_below(text)
    return text if below is None else str(below)


def _run_below(name: str) -> Path | None:
    """Return the directory of the run of this name below ./runs, or None if there is none."""
    below = ROOT / name
    return below if (below / "submissions").is_dir() else None


def _open(text: str, create: bool | None) -> tuple[Store, _Candidate]:
    if not text:
        raise CommandUsageError("no place given: give a store, a run in it, or a run directory")
    if meant := meant_url(text):
        raise CommandUsageError(f"{text} is neither a path nor a URL; did you mean {meant}?")
    from hpckit.system.store_timeouts import interactive_store_options

    for candidate in _candidates(text):
        try:
            return Store.open(candidate.url, options=interactive_store_options()), candidate
        except FileNotFoundError:
            continue
    if create:
        return Store.open(text, options=interactive_store_options(), create=True), _Candidate(text)
    raise CommandUsageError(_nothing_at(text, can_create=create is not None))


def _nothing_at(text: str, can_create: bool) -> str:
    folder = local_folder(text)
    if folder is not None and (folder / "submissions").is_dir():
        return (
            f"{text} is a run that has not saved a checkpoint yet; hpckit why {text} shows the "
            "reason"
        )
    if folder is not None and (below := _run_below(text)) is not None:
        return f"no checkpoint store at {text}; did you mean the run {below}?"
    is_there = folder is None or folder.exists()
    why = f"it has no {object_keys.STORE}" if is_there else "it does not exist"
    if folder is not None and not is_there and (similar := similar_runs(Path(text))):
        return f"no checkpoint store at {text}: {why}; did you mean {' or '.join(similar)}?"
    return (
        f"no checkpoint store at {text}: {why}. Give the folder or URL of a store, a run in it as "
        "STORE/runs/RUN, or a run directory (with checkpoints/ in it) or its name below ./runs"
        f"{'; --create makes a new store there' if can_create else ''}"
    )


def _candidates(text: str) -> Iterator[_Candidate]:
    folder = local_folder(text)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise CommandUsageError(f"{text} is a file; a store or run directory is a folder")
    if folder is not None and (folder.parent / "submissions").is_dir():  # RUN/checkpoints
        yield _Candidate(text, directory=folder.parent)
    else:
        yield _Candidate(text)
    if folder is not None:
        yield _Candidate(str(folder / "checkpoints"), None, folder.name, folder)
    if match := RUN_IN_STORE.fullmatch(text if folder is None else str(folder)):
        yield _Candidate(match[1], run=match[2])
    if folder is not None and (folder / "submissions").is_dir():
        yield from _elsewhere(folder)


def _elsewhere(folder: Path) -> Iterator[_Candidate]:
    """Return the store that a run directory's spec names."""
    from hpckit.config.spec_parser import SpecError, read_spec
    from hpckit.rundir.directory import RunDir, checkpoint_root, run_name

    directory = RunDir(folder)
    numbers = directory.submission_numbers()
    if not numbers:
        return
    try:
        spec = read_spec(directory.spec(numbers[-1]))
    except (SpecError, OSError) as error:
        reason = describe_error(error) if isinstance(error, OSError) else error
        raise CommandUsageError(
            f"{folder} is a run directory, but the location of its checkpoints cannot be read: "
            f"{reason}; give the store itself"
        ) from None
    if spec.command is not None:
        raise CommandUsageError(
            f"{folder} is the run of a program, which keeps its checkpoints itself; if a "
            "Checkpointer saves them, give its store, or a run in it as STORE/runs/RUN"
        )
    yield _Candidate(checkpoint_root(spec, directory), None, run_name(spec), folder)


def _which(
    candidate: _Candidate, asked: str | None, runs: tuple[str, ...], url: str, may_be_new: bool
) -> str | None:
    if candidate.run and asked and candidate.run != asked:
        raise CommandUsageError(
            f"the place names the run {candidate.run!r}, but --run names {asked!r}"
        )
    run = asked or candidate.run
    if run is not None and run not in runs and not may_be_new:
        there = f"the runs are: {listing(runs)}" if runs else "the store has no runs yet"
        raise CommandUsageError(f"no run {run!r} in {url}; {there}")
    if run is None and len(runs) > 1 and candidate.likely in runs:
        return candidate.likely
    return run
