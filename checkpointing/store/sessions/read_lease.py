"""Keeps a checkpoint from being pruned while it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from checkpointing.errors import StoreAccessError
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store, StoredManifest


@contextmanager
def leased(store: Store, stored: StoredManifest, note: Callable[[str], None]) -> Iterator[None]:
    """Hold a lease on the checkpoint while the block runs, if the store is writable.

    Args:
        note: called with the reason if it is not.

    Raises:
        FileNotFoundError: it was removed before the lease was written.
    """
    with ExitStack() as stack:
        session = stack.enter_context(Session(store, stored.save.run))
        try:
            stack.enter_context(session.reading(stored.key))
        except StoreAccessError as error:
            id_ = stored.save.id
            note(f"reading without a lease, so a prune may remove {id_} meanwhile: {error}")
        yield
