"""What checkpoints a store holds, what unfinished saves left, and what is damaged, from the headers
of manifests alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format import manifest as forms
from checkpointing.format import names
from checkpointing.format.differing import Marked, summary
from checkpointing.format.manifest import Document
from checkpointing.format.names import Save
from checkpointing.store.store import Store, Stored

THREADS = 16  # that read headers: each is a request, and most of its time is waiting for the reply

State = Literal["committed", "partial", "incomplete", "damaged"]


@dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint, or what an unfinished save left. "damaged" here means: seen without reading
    the tensors' bytes; `verify` reads them. "partial": retention took items out."""

    step: int
    id: str  # "<step>-<session>", unique in its run
    run: str
    created: float  # Unix time, seconds; of an unfinished or damaged one, of its newest object
    bytes: int  # stored, of all that it refers to; shared or not
    raw_bytes: int  # decoded
    world_size: int
    tensors: int
    items: tuple[str, ...]
    metrics: Mapping[str, float] = field(hash=False)
    state: State
    key: str  # of the manifest, or of the folder of parts
    problem: str | None = None
    differing: str | None = None  # of what ranks held different replicas
    is_suspect: bool = False  # so that `restore` prefers another one

    @property
    def save(self) -> Save:
        return Save(self.run, self.step, self.id.rpartition("-")[2])


@dataclass(frozen=True)
class Found:
    """A checkpoint's last good revision."""

    stored: Stored
    document: Document


def committed(store: Store, run: str | None = None) -> tuple[list[Found], dict[Save, str]]:
    """The checkpoints of a run, or of all, newest first within each run; and what is wrong with
    those that have no readable manifest."""
    seen: set[str] = set()
    listed = store.manifests(run)
    while True:
        found, problems = _readable(store, listed)
        seen |= {stored.key for stored in listed}
        listed = store.manifests(run)
        if seen.issuperset(stored.key for stored in listed):
            return found, problems
        # a new revision: a listing beside it may show neither it nor the one before


def _readable(store: Store, listed: Iterable[Stored]) -> tuple[list[Found], dict[Save, str]]:
    revisions: dict[Save, list[Stored]] = {}
    for stored in listed:
        revisions.setdefault(stored.save, []).append(stored)
    with ThreadPoolExecutor(THREADS, "catalog") as pool:
        looked = list(pool.map(partial(_last_good, store), revisions.values()))
    problems = {
        save: one for save, one in zip(revisions, looked, strict=True) if isinstance(one, str)
    }
    return [one for one in looked if isinstance(one, Found)], problems


def _last_good(store: Store, revisions: Sequence[Stored]) -> Found | str | None:
    """Of one checkpoint: what is wrong with the last revision if no other is good; None if there
    is nothing any more, or only a save that was declared dead."""
    problem: str | None = None
    for stored in revisions:  # later ones first
        try:
            document = store.document(stored)
        except FileNotFoundError:
            continue
        except (DamagedError, FormatError) as error:
            problem = problem or str(error)
            continue
        if document.kind == forms.MANIFEST:
            return Found(stored, document)
    return problem


def suspected(found: Iterable[Found]) -> dict[Stored, Marked]:
    """Those of which ranks held different replicas; none if all are such."""
    found = list(found)
    marks = {one.stored: one.document.header.marked for one in found}
    suspects = {stored: mark for stored, mark in marks.items() if mark and mark.is_suspect}
    return {} if len(suspects) == len(found) else suspects


def newest_first(store: Store, run: str) -> list[Found]:
    """The readable checkpoints of a run in the order in which to try them."""
    found, _ = committed(store, run)
    return sorted(
        found, key=lambda f: (f.stored.save.step, f.document.header.created), reverse=True
    )


def list_checkpoints(store: Store, run: str | None = None) -> list[CheckpointInfo]:
    """All checkpoints, unfinished saves and damaged manifests, ordered by run, step and time."""
    found, problems = committed(store, run)
    infos = [_info(f) for f in found]
    infos += [_damaged(store, save, text) for save, text in problems.items()]
    known = {(info.run, info.id) for info in infos}
    infos += [info for info in _incomplete(store, run) if (info.run, info.id) not in known]
    return sorted(infos, key=lambda info: (info.run, info.step, info.created, info.id))


def _info(found: Found) -> CheckpointInfo:
    header, items = found.document.header, found.document.items
    return CheckpointInfo(
        step=header.save.step,
        id=header.save.id,
        run=header.save.run,
        created=header.created,
        bytes=sum(item.stored_bytes for item in items.values()),
        raw_bytes=sum(item.raw_bytes for item in items.values()),
        world_size=header.world_size,
        tensors=sum(item.tensors for item in items.values()),
        items=tuple(items),
        metrics=header.metrics,
        state="partial" if header.dropped else "committed",
        key=found.stored.key,
        problem=f"without {', '.join(header.dropped)}" if header.dropped else None,
        differing=summary(header.marked) if header.marked else None,
        is_suspect=header.is_suspect,
    )


def _damaged(store: Store, save: Save, problem: str) -> CheckpointInfo:
    newest = next(stored for stored in store.manifests(save.run) if stored.save == save)
    return _broken(save, newest.key, newest.modified, newest.size, "damaged", problem)


def _incomplete(store: Store, run: str | None) -> list[CheckpointInfo]:
    saves: dict[Save, list[tuple[float, int]]] = {}
    prefix = names.RUNS if run is None else names.parts(run)
    for entry in store.storage.list(prefix):
        if parsed := names.parse_part(entry.key):
            saves.setdefault(parsed[0], []).append((entry.modified, entry.size))
    return [
        _broken(
            save,
            save.parts,
            max(modified for modified, _ in parts),
            sum(size for _, size in parts),
            "incomplete",
            f"no manifest: {len(parts)} ranks had finished when the save ended, or it is running",
        )
        for save, parts in saves.items()
    ]


def _broken(
    save: Save, key: str, created: float, size: int, state: State, problem: str
) -> CheckpointInfo:
    return CheckpointInfo(
        step=save.step,
        id=save.id,
        run=save.run,
        created=created,
        bytes=size,
        raw_bytes=0,
        world_size=0,
        tensors=0,
        items=(),
        metrics={},
        state=state,
        key=key,
        problem=problem,
    )
