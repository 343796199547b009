"""A lease that keeps a checkpoint from a prune while a command reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from checkpointing.store.catalog import CatalogEntry
from checkpointing.store.sessions.session import leased
from checkpointing.store.store import Store
from hpckit.cli.common.store_errors import CommandUsageError


@contextmanager
def read_lease(store: Store, found: CatalogEntry, note: Callable[[str], None]) -> Iterator[None]:
    """Hold a lease on the checkpoint for the duration of the block, if the store is writable.

    Raises:
        CommandUsageError: the checkpoint was removed before the lease existed.
    """
    save = found.stored.save
    with ExitStack() as stack:
        try:
            stack.enter_context(leased(store, found.stored, note))
        except FileNotFoundError:
            raise CommandUsageError(
                f"step {save.step} ({save.id}) was removed in the meantime"
            ) from None
        yield


def is_there(store: Store, found: CatalogEntry) -> bool:
    """Returns whether the manifest still exists."""
    manifests = store.manifests(found.stored.save.run)
    return any(stored.key == found.stored.key for stored in manifests)
