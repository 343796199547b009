"""Decides which snapshots are copied to the node's own disk, and when: those with a deadline that
the store may miss, and what is left when the service ends."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from checkpointing.errors import ServiceError
from checkpointing.service.registry.rank_slots import ArenaLayout, RegisteredSnapshot
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.snapshots import Generation, RankSnapshot
from checkpointing.service.spool.save_tier_choice import (
    SaveRates,
    SaveTier,
    SnapshotCopyTask,
    TierChoice,
    choose_tier,
    is_last_call,
)
from checkpointing.service.spool.spool_file import SpoolHeader
from checkpointing.service.spool.spool_folder import SpoolFolder

logger = logging.getLogger("checkpointing")

LOOK_S = 0.2  # seconds between looks at the snapshots with a deadline
_LARGE = 1 << 20  # bytes; a smaller file says little about the speed of a disk


@dataclass(frozen=True)
class StoreOutlook:
    """The state of the service's writes to the store.

    Attributes:
        under_way: the save that is being written.
        left: raw bytes of it that this node still has to write.
        compresses: whether it may compress.
        store, since: as of `SpoolHeader`.
    """

    rates: SaveRates = field(default_factory=SaveRates)
    under_way: tuple[Generation, int] | None = None
    left: float = 0.0
    compresses: bool = True
    store: str | None = None
    since: int = -1


@dataclass(frozen=True)
class UnsavedStep:
    """What ranks of this node have of a step that is not durable."""

    generation: Generation
    step: int
    parts: tuple[RegisteredSnapshot, ...]

    @property
    def raw_bytes(self) -> int:
        return sum(held.snapshot.layout.bytes for held in self.parts)


@dataclass(frozen=True)
class SpooledCopy:
    """A spool file that exists."""

    generation: str  # id of the generation
    step: int
    created: float  # Unix time of the call of `save`, in seconds


class Spooler:
    """Looks repeatedly at what is not durable yet, and copies it if necessary. Thread-safe."""

    def __init__(
        self,
        registry: SnapshotRegistry,
        spool: SpoolFolder | None,
        outlook: Callable[[], StoreOutlook],
        owner: Callable[[Generation], int | None],
    ) -> None:
        """Create the spooler.

        Args:
            spool: None: there is no disk to copy to; choices are made and logged all the same.
            ahead: returns the present state of the writes to the store.
            owner: returns the owner of a generation, as of `SpoolHeader`.
        """
        self._registry, self._spool, self._outlook, self._owner = registry, spool, outlook, owner
        self._lock = threading.Lock()  # guards all fields below
        self._files: dict[str, SpooledCopy] = {}  # by file name
        self._tried: set[tuple[Generation, int, int]] = set()  # with rank and step
        self._reported: dict[tuple[Generation, int], TierChoice] = {}
        self._local: float | None = None  # bytes per second
        self._durable: deque[tuple[Generation, int, float]] = deque()  # is used without the lock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def knows(self, name: str, snapshot: RankSnapshot) -> None:
        """Record that a snapshot has a file from before."""
        with self._lock:
            self._files[name] = _written(snapshot)
            self._tried.add(_key(snapshot))

    def consider(self, *, ends: bool = False) -> None:
        """Choose a tier for each snapshot that is not durable; return once all due copies are made.

        Args:
            ends: whether the service ends: then all that is whole is copied.
        """
        try:
            self._consider_all(ends=ends)
        except Exception:
            # an unexpected error must not end the save
            logger.exception("cannot choose where snapshots are copied")

    def _consider_all(self, *, ends: bool) -> None:
        with self._lock:
            self._clear()
            outlook, before = self._outlook(), 0.0
            for unsaved in _in_order(self._registry.not_durable(), outlook):
                is_now = outlook.under_way == (unsaved.generation, unsaved.step)
                before += outlook.left if is_now else unsaved.raw_bytes
                self._consider(unsaved, before, outlook, ends=ends)

    def durable(self, generation: Generation, step: int, created: float) -> None:
        """Record that a step is in the store: its files are removed soon, and those of older
        states.

        Args:
            created: Unix time of the call of `save`, in seconds.
        """
        self._durable.append((generation, step, created))

    def close(self) -> None:
        """Remove what need not stay, and end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            self._clear()
            if self._spool is not None:
                self._spool.close()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.consider()

    def _consider(
        self, unsaved: UnsavedStep, to_store: float, outlook: StoreOutlook, *, ends: bool
    ) -> None:
        deadline_s = self._deadline_s(unsaved)
        if deadline_s is None and not ends:
            return
        left_s = 0.0 if deadline_s is None else deadline_s - time.monotonic()
        missing = [held for held in unsaved.parts if _key(held.snapshot) not in self._tried]
        to_local = None
        if self._spool is not None and missing:
            to_local = float(sum(held.snapshot.layout.end for held in missing))
        rates = replace(outlook.rates, local=self._local)
        task = SnapshotCopyTask(to_store, to_local, outlook.compresses)
        choice = choose_tier(task, rates, left_s)
        if not ends:
            self._report(unsaved, choice, left_s)
        if to_local is not None and (
            ends or choice.tier is SaveTier.LOCAL or is_last_call(task, rates, left_s)
        ):
            self._copy_all(unsaved, missing, outlook)

    def _deadline_s(self, unsaved: UnsavedStep) -> float | None:
        """Return the deadline of a step on the monotonic clock."""
        ends = [
            held.arrived_s + held.snapshot.deadline_s
            for held in unsaved.parts
            if held.snapshot.deadline_s is not None
        ]
        if (stop_at_s := self._registry.stop_at_s) is not None:
            ends.append(stop_at_s)
        return min(ends, default=None)

    def _report(self, unsaved: UnsavedStep, choice: TierChoice, left_s: float) -> None:
        """Report a choice once, and again when another tier is chosen; what is left to do after a
        copy is not reported."""
        key = (unsaved.generation, unsaved.step)
        reported = self._reported.get(key)
        if reported is not None and (
            reported.tier is SaveTier.LOCAL or reported.tier is choice.tier
        ):
            return
        self._reported[key] = choice
        logger.info(
            "step %d has to be durable in %.1f s: %s, %s, takes %.1f s by measurement",
            unsaved.step,
            left_s,
            choice.tier.value,
            choice.codec.value,
            choice.needs_s,
        )
        fields: dict[str, Any] = {
            "step": unsaved.step,
            "tier": choice.tier.value,
            "codec": choice.codec.value,
            "left_s": left_s,
            "needs_s": choice.needs_s,
        }
        self._registry.ledger.choice = {**fields, "outcome": None}
        self._registry.notify(unsaved.generation, "tier", **fields)

    def _copy_all(
        self, unsaved: UnsavedStep, missing: list[RegisteredSnapshot], outlook: StoreOutlook
    ) -> None:
        ledger = self._registry.ledger
        begun_s, size, problems = time.monotonic(), 0, []
        for held in missing:
            snapshot = held.snapshot
            self._tried.add(_key(snapshot))
            try:
                size += self._copy(held, outlook)
            except (OSError, ServiceError) as error:
                why = f"rank {snapshot.rank}: {error}"
                logger.error("step %d has no local copy: %s", unsaved.step, why)
                problems.append(why)
        seconds = time.monotonic() - begun_s
        if size >= _LARGE or (size and self._local is None):
            self._local = size / max(seconds, 1e-6)
        if problems:
            ledger.spool_failed += len(problems)
            ledger.spool_error = problems[0]
            self._record_outcome(unsaved.step, "no local copy")
            self._registry.notify(
                unsaved.generation, "spool_failed", step=unsaved.step, error="; ".join(problems)
            )
        elif size:
            logger.info("step %d has a local copy: %d bytes in %.2f s", unsaved.step, size, seconds)
            ledger.spooled += len(missing)
            ledger.local_bytes_per_s, ledger.spool_error = self._local, None
            self._record_outcome(unsaved.step, "local copy")
            self._registry.notify(
                unsaved.generation, "spooled", step=unsaved.step, bytes=size, seconds=seconds
            )

    def _record_outcome(self, step: int, outcome: str) -> None:
        """Record the outcome of the last choice, if it was for this step."""
        choice = self._registry.ledger.choice
        if choice is not None and choice["step"] == step:
            self._registry.ledger.choice = {**choice, "outcome": outcome}
            logger.info("step %d, for which %s was chosen: %s", step, choice["tier"], outcome)

    def _copy(self, held: RegisteredSnapshot, outlook: StoreOutlook) -> int:
        """Copy a snapshot; return the size of the file, 0 if it is not needed any more."""
        snapshot = held.snapshot
        with self._registry.peeking(snapshot) as found:
            if found is None or self._spool is None:
                return 0
            arena_layout, memory = found
            spooled = self._spooled(held, arena_layout, outlook)
            over = [name for name, _ in sorted(self._files.items(), key=lambda i: i[1].created)]
            going = [name for name in over if self._files[name].created < snapshot.created]
            size = self._spool.put(spooled, memory, going)
        self._files[spooled.name] = _written(snapshot)
        return size

    def _spooled(
        self, held: RegisteredSnapshot, arena_layout: ArenaLayout, outlook: StoreOutlook
    ) -> SpoolHeader:
        snapshot = held.snapshot
        owner = self._owner(snapshot.generation)
        return SpoolHeader(
            snapshot,
            owner,
            outlook.store,
            outlook.since,
            arena_layout.slots,
            arena_layout.slot_bytes,
        )

    def _clear(self) -> None:
        """Remove files that are of no use any more."""
        if self._durable:
            self._look()
        while self._durable:
            generation, step, created = self._durable.popleft()
            self._record_outcome(step, "durable")
            gone = [n for n, w in self._files.items() if _is_over(w, generation, step, created)]
            self._tried = {t for t in self._tried if t[0] != generation or t[2] > step}
            self._reported = {
                k: c for k, c in self._reported.items() if k[0] != generation or k[1] > step
            }
            if self._spool is not None and gone:
                self._remove(gone)

    def _look(self) -> None:
        """Find files that are not recorded yet: damaged ones, or those of a start without a
        store."""
        if self._spool is None:
            return
        try:
            found = self._spool.files()
        except ServiceError as error:
            logger.error("%s", error)
            return
        for file in found:
            unknown = SpooledCopy(file.generation, file.step, file.modified)
            self._files.setdefault(file.path.name, unknown)

    def _remove(self, names: list[str]) -> None:
        assert self._spool is not None
        try:
            self._spool.remove(names)
        except OSError as error:
            logger.error(
                "%s: durable local copies cannot be removed: %s", self._spool.folder, error
            )
        for name in names:
            self._files.pop(name, None)


def created(registry: SnapshotRegistry, generation: Generation, step: int) -> float:
    """Return the Unix time of the call of `save` for a step that is in memory here; 0 if it is
    not."""
    times = [
        s.created for s, _ in registry.snapshots() if (s.generation, s.step) == (generation, step)
    ]
    return max(times, default=0.0)


def _key(snapshot: RankSnapshot) -> tuple[Generation, int, int]:
    return snapshot.generation, snapshot.rank, snapshot.step


def _written(snapshot: RankSnapshot) -> SpooledCopy:
    return SpooledCopy(snapshot.generation.id, snapshot.step, snapshot.created)


def _is_over(written: SpooledCopy, generation: Generation, step: int, created: float) -> bool:
    """Return whether a file is of no use once a step is durable."""
    if written.generation == generation.id:
        return written.step <= step
    return written.created <= created


def _in_order(held: list[RegisteredSnapshot], outlook: StoreOutlook) -> list[UnsavedStep]:
    """Return the steps in the order in which they will be written: the one under way, then the
    newest."""
    steps: dict[tuple[Generation, int], list[RegisteredSnapshot]] = {}
    for one in held:
        steps.setdefault((one.snapshot.generation, one.snapshot.step), []).append(one)
    found = [UnsavedStep(*key, tuple(parts)) for key, parts in steps.items()]
    return sorted(
        found,
        key=lambda unsaved: (
            (unsaved.generation, unsaved.step) != outlook.under_way,
            -max(part.order for part in unsaved.parts),
        ),
    )
