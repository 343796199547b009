"""Checks whether a folder or bucket can be a checkpoint store, with small objects of its own."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from checkpointing import CheckpointError, local_folder
from checkpointing.storage import open_storage
from hpckit.doctor.finding import Finding, Level
from hpckit.system.store_timeouts import interactive_store_options

MIB = 1 << 20
SIZE = 16 * MIB
SKEW_S = 30.0
"""Largest difference of clocks in seconds without a finding; leases last for minutes."""
SLOW_CREATE_S = 1.5
"""Seconds above which a create-if-absent request is slow: it takes as long only if hpckit itself
has to decide which of several writers was first."""


@dataclass(frozen=True)
class StoreFacts:
    """The results of the probe."""

    put_mib_s: float
    get_mib_s: float
    create_s: float
    is_exclusive: bool
    """Whether a second object under one name was rejected."""
    is_listed: bool
    """Whether a new object was in the next listing."""
    skew_s: float
    """The storage's clock minus this machine's, in seconds."""


def probe(url: str) -> StoreFacts:
    """Write, read, list and remove objects, and return what was measured.

    Raises:
        CheckpointError: one of these requests failed.
    """
    folder = local_folder(url)
    made = [] if folder is None else [one for one in (folder, *folder.parents) if not one.exists()]
    name = f"doctor~{secrets.token_hex(8)}"
    keys = [f"{name}/data", f"{name}/once"]
    content = secrets.token_bytes(SIZE)
    with (
        closing(open_storage(url, options=interactive_store_options())) as storage,
        ExitStack() as undo,
    ):
        if folder is not None:
            undo.callback(_remove_empty, [folder / name, *made])
        storage.list(f"{name}/")  # a small request fails soonest if the storage does not answer
        put_s = _timed(lambda: storage.put(keys[0], [content]))
        undo.callback(storage.delete, keys)
        now_s = time.time()
        entries = storage.list(f"{name}/")
        get_s = _timed(lambda: storage.get(keys[0]))
        create_s = _timed(lambda: storage.create(keys[1], b"first"))
        is_second = storage.create(keys[1], b"second")
        return StoreFacts(
            put_mib_s=SIZE / MIB / put_s,
            get_mib_s=SIZE / MIB / get_s,
            create_s=create_s,
            is_exclusive=not is_second,
            is_listed=any(entry.key == keys[0] for entry in entries),
            skew_s=max((entry.modified for entry in entries), default=now_s) - now_s,
        )


def findings(url: str) -> Iterator[Finding]:
    """Probe the store and return findings."""
    try:
        facts = probe(url)
    except (CheckpointError, OSError) as error:
        do = "check checkpoint.url, its credentials and permissions: nothing can be saved there"
        yield Finding(Level.FAIL, "store", f"{url}: {error}", do)
        return
    yield from judge(url, facts)


def judge(url: str, facts: StoreFacts) -> Iterator[Finding]:
    """Return the findings about the results. Pure."""
    if not facts.is_exclusive or not facts.is_listed:
        lacks = (
            "two writers can both create the same object"
            if not facts.is_exclusive
            else "a listing does not show a new object"
        )
        do = "use another checkpoint.url: commits are not safe there"
        yield Finding(Level.FAIL, "store", f"{url}: {lacks}", do)
        return
    rates = (
        f"one object of 16 MiB: {facts.put_mib_s:,.0f} MiB/s written, {facts.get_mib_s:,.0f} MiB/s "
        "read"
    )
    yield Finding(Level.OK, "store", f"{url}: {rates}")
    if facts.create_s > SLOW_CREATE_S:
        what = f"it has no conditional writes: each commit takes {facts.create_s:.0f} s"
        yield Finding(Level.NOTE, "store", what, "a server that supports If-None-Match is faster")
    if abs(facts.skew_s) > SKEW_S:
        what = f"its clock and this machine's are {abs(facts.skew_s):.0f} s apart"
        yield Finding(Level.WARN, "clock", what, "synchronise both by NTP")


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # another process has begun to use it
            folder.rmdir()


def _timed(do: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    do()
    return time.perf_counter() - begun_s
