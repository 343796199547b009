"""What a `Checkpointer` has open: the process group, the store and the service of its node. Each is
opened on all ranks or on none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from checkpointing.errors import CheckpointError, ServiceError, StoreError
from checkpointing.events import Events
from checkpointing.format.object_keys import new_session
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.service.client.service_connection import OnMessage
from checkpointing.service.config import ServiceConfig
from checkpointing.service.snapshots import Generation
from checkpointing.store.sessions.session_leases import storage_time
from checkpointing.store.store import Store


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class MessageDispatcher:
    """Passes each message of the service on to all handlers, in the order in which they were
    added."""

    def __init__(self) -> None:
        self._handlers: list[OnMessage] = []

    def add(self, handler: OnMessage) -> None:
        """Have `handler` called with every message from now on."""
        self._handlers.append(handler)

    def dispatch(self, message: dict[str, Any]) -> None:
        for handler in self._handlers:
            handler(message)


@dataclass(frozen=True)
class Connections:
    """What one Checkpointer has open.

    Attributes:
        run: the name of the run in the store.
        here: the ranks of this node.
        messages: passes on what the service reports.
    """

    run: str
    ranks: RankGroup
    here: frozenset[int]
    events: Events
    store: Store
    client: ServiceClient
    messages: MessageDispatcher


class CurrentGeneration:
    """The service generation that this rank's saves belong to."""

    def __init__(self, ranks: RankGroup) -> None:
        """Begin with a generation that no process has used before. Collective."""
        self._ranks = ranks
        self.value = _new_generation(ranks)

    def renew(self, client: ServiceClient, owner: int | None) -> None:
        """Begin a new generation and register this rank in it. Collective.

        Args:
            owner: on rank 0: the number of the takeover of the run; None: that of the generation
                before.

        Raises:
            ServiceError: a node's service does not answer.
        """
        self.value = _new_generation(self._ranks, self.value.owner if owner is None else owner)
        self._ranks.all_or_none(lambda: client.register(self.value))


def open_store(
    ranks: RankGroup, root: str | os.PathLike[str], options: Mapping[str, Any] | None
) -> Store:
    """Open the store. A rank that cannot write to it would fail every save, so all must be able to.

    Raises:
        StoreError: a rank cannot; the message says which and why.
    """

    def open_here() -> Store:
        store = Store.open(root, options=options, create=True)
        try:
            storage_time(store)
        except BaseException:
            store.close()
            raise
        return store

    return _all_or_none(ranks, open_here, f"cannot keep checkpoints in {root}", StoreError)


def join_service(
    ranks: RankGroup,
    config: ServiceConfig,
    here: frozenset[int],
    generation: Generation,
    on_message: OnMessage,
) -> ServiceClient:
    """Connect to this node's checkpoint service.

    Args:
        here: the ranks of this node.

    Raises:
        ServiceError: it cannot be started on one of the nodes; the message says on which ranks and
            why.
    """

    def join_here() -> _IdleClient:
        return _IdleClient(ServiceClient(config, ranks.rank, here, generation, on_message))

    return _all_or_none(
        ranks, join_here, "the checkpoint service cannot be reached", ServiceError
    ).client


def _new_generation(ranks: RankGroup, owner: int | None = None) -> Generation:
    mine = Generation(new_session(), ranks.world_size, owner)
    return ranks.broadcast(mine, ranks.control)


class _IdleClient:
    """A client that has not restored or saved anything yet and can be closed without notice."""

    def __init__(self, client: ServiceClient) -> None:
        self.client = client

    def close(self) -> None:
        self.client.close(goodbye=False)


def _all_or_none(
    ranks: RankGroup, do: Callable[[], T], what: str, kind: type[CheckpointError]
) -> T:
    """Returns what `do` opens once it has succeeded on all ranks; else closes it and raises on all
    of them, with `what` in the message, an error of `kind` or of the more specific class that `do`
    raised."""
    opened: list[T] = []

    def open_here() -> T:
        try:
            opened.append(do())
        except (CheckpointError, OSError) as error:
            raised = type(error) if isinstance(error, kind) else kind
            raise raised(f"{what}: {error}") from error
        return opened[0]

    try:
        return ranks.all_or_none(open_here)
    except BaseException:
        for one in opened:
            one.close()
        raise
