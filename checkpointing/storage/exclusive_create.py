"""Creates an object only if it does not exist, also where the backend has no such operation."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from checkpointing.errors import StoreError
from checkpointing.storage.interface import ObjectInfo, Storage

logger = logging.getLogger("checkpointing")

# largest difference between clocks of a storage's servers, and largest duration of a tiny put
_MARGIN_S = 2.0
_TIMEOUT_S = 120.0
_POLL_S = 0.5
Native = Callable[[str, bytes], bool]

_CLAIM, _BODY, _TICK = ".claim", ".body", ".tick"


class NoExclusiveCreateError(Exception):
    """The backend cannot create an object only if it does not exist."""


class ExclusiveCreator:
    """Implements the exclusive creation of objects for one storage. Thread-safe.

    Args:
        native: `Storage.create` as an operation of the backend; raises NoExclusiveCreateError if
            the backend says that it has none.
        probe: check at the first create that the backend does not ignore the condition, by creating
            one scratch object twice. This does not detect a backend that fails only under a race.
    """

    def __init__(self, storage: Storage, native: Native | None, *, probe: bool) -> None:
        self._storage, self._native, self._probe = storage, native, probe
        self._lock = threading.Lock()
        self._arbitrates: bool | None = None if native is None or probe else False

    def create(self, key: str, data: bytes) -> bool:
        """See `Storage.create`."""
        if self._native is None:
            self._use_arbitration("its driver has no exclusive create")
        else:
            try:
                if not self._needs_arbitration(self._native, key):
                    return self._native(key, data)
            except NoExclusiveCreateError as error:
                self._use_arbitration(str(error))
        return arbitrate(self._storage, key, data)

    def _needs_arbitration(self, native: Native, key: str) -> bool:
        with self._lock:
            if self._arbitrates is None:
                self._arbitrates = not self._passes_probe(native, key)
                if self._arbitrates:
                    self._announce("it allowed an object to be created twice")
            return self._arbitrates

    def _passes_probe(self, native: Native, key: str) -> bool:
        scratch = f"{key}~probe-{secrets.token_hex(8)}"
        passes = native(scratch, b"first") and not native(scratch, b"second")
        self._storage.delete([scratch])
        return passes

    def _use_arbitration(self, why: str) -> None:
        with self._lock:
            if not self._arbitrates:
                self._announce(why)
            self._arbitrates = True

    def _announce(self, why: str) -> None:
        logger.warning(
            "%s does not support exclusive creation of objects (%s); writers agree through claim "
            "objects instead, which takes some seconds per commit",
            self._storage.url,
            why,
        )


@dataclass(frozen=True)
class _Claims:
    """The objects in the folder of claims on a key."""

    entries: list[ObjectInfo]

    def of(self, name: str) -> ObjectInfo | None:
        return next((e for e in self.entries if e.key.endswith(f"/{name}")), None)

    @property
    def winner(self) -> str:
        """The key of the body of the first claim, which is the same for every caller that saw the
        claims settled."""
        claims = [e for e in self.entries if e.key.endswith(_CLAIM)]
        first = min(claims, key=lambda e: (math.floor(e.modified), e.key))
        return first.key.removesuffix(_CLAIM) + _BODY


def arbitrate(
    storage: Storage, key: str, data: bytes, *, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Implements `Storage.create` with put, list and delete only.

    Every caller puts its content and a claim into the folder "<key>~claims/", waits until the clock
    of the storage is well past its own claim, and lists the claims: the one with the lowest
    (second, name) in that list wins. Then *every* caller that still finds no object puts the
    content of the winner, so that no caller waits for a winner that died, and a slow one does no
    harm. Claims are removed only once the object exists, so a caller that misses a claim in the
    list finds the object afterwards.

    Guarantee, if the assumptions hold: the object only ever has one content, whichever callers die
    or stall.

    Assumptions: a list shows what was put before it; modification times are of the storage's clock
    in whole seconds or finer, and neither clocks of its servers nor the time that putting a tiny
    object takes differ by more than 2 s; all writers of the key use this method only.

    A caller that dies after its claim may win later, when another caller creates the same key.

    Raises:
        StoreError: as every method of `Storage`; or there is no decision within 2 minutes.
    """
    folder = f"{key}~claims/"
    deadline_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline_s:
        held = _read(storage, key)
        if held is None:
            claims = _settled(storage, folder, data, deadline_s, sleep)
            held = _read(storage, key)  # must be read after the list, not before
            if held is None and claims is not None:
                held = _read(storage, claims.winner)
                if held is not None:
                    storage.put(key, [held])
        if held is not None:
            storage.delete([entry.key for entry in storage.list(folder)])
            return held == data
    raise StoreError(
        f"create {storage.url}/{key}: writers could not agree within {_TIMEOUT_S:.0f} s; either "
        "the listing of this storage lags or its modification times stand still"
    )


def _settled(
    storage: Storage,
    folder: str,
    data: bytes,
    deadline_s: float,
    sleep: Callable[[float], None],
) -> _Claims | None:
    """Put a claim, and return the claims once no earlier one can appear; None if the caller's own
    claim is gone."""
    nonce = secrets.token_hex(8)
    storage.put(f"{folder}{nonce}{_BODY}", [data])
    storage.put(f"{folder}{nonce}{_CLAIM}", [nonce.encode()])
    while time.monotonic() < deadline_s:
        storage.replace(f"{folder}{nonce}{_TICK}", b"now")
        claims = _Claims(storage.list(folder))
        own, tick = claims.of(f"{nonce}{_CLAIM}"), claims.of(f"{nonce}{_TICK}")
        if own is None:
            return None  # it was removed with the others, because the object exists
        if tick and math.floor(tick.modified) > math.floor(own.modified) + _MARGIN_S:
            return claims
        sleep(_POLL_S)
    return None


def _read(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.get(key)
    except FileNotFoundError:
        return None
