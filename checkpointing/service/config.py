"""What a service is started with: one JSON object on its standard input, because a command line is
there for everybody to read and a storage's options may hold secrets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from checkpointing.errors import ServiceError
from checkpointing.retention import Best, Buckets, Every, KeepPolicy, Last, Only
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.part_writer import THREADS, WriteOptions

RECOVER_S = 240.0  # in which a service that starts reads what lies on its node's own disk
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_POLICIES = {policy.__name__: policy for policy in (Last, Every, Best, Buckets, Only)}


@dataclass(frozen=True)
class Budget:
    """What a service may take of its node.

    Attributes:
        cpu: threads that hash and encode.
        cpus: cores that it keeps to, also others than those that a trainer is bound to; empty:
            those of the process that starts it.
        nice: added to its niceness, so that trainers come first.
        bytes_per_s: upper bound of what it sends to the store; None: none.
        local_bytes: most bytes of the run's snapshots on the node's own disk; None: what it holds.
        peer_bytes_per_s: the same of replicas that it sends to another node.
    """

    cpu: int = THREADS
    cpus: tuple[int, ...] = ()
    nice: int = 10
    bytes_per_s: float | None = None
    peer_bytes_per_s: float | None = None
    local_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.cpu < 1:
            raise ValueError(f"cpu is a number of threads, at least 1, got {self.cpu}")
        if not 0 <= self.nice <= 19:
            raise ValueError(f"nice is from 0 to 19, got {self.nice}")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise ValueError(f"bytes_per_s has to be above 0, got {self.bytes_per_s}")
        if self.peer_bytes_per_s is not None and self.peer_bytes_per_s <= 0:
            raise ValueError(f"peer_bytes_per_s has to be above 0, got {self.peer_bytes_per_s}")
        if self.local_bytes is not None and self.local_bytes <= 0:
            raise ValueError(f"local_bytes has to be above 0, got {self.local_bytes}")
        if unknown := set(self.cpus) - usable(self.cpus):
            raise ValueError(f"cpus {sorted(unknown)} are none that processes here may use")


def usable(cpus: Collection[int]) -> set[int]:
    """Those of the cores that a process may bind itself to, whatever this one is bound to."""

    def bind() -> set[int]:
        try:
            os.sched_setaffinity(0, cpus)  # of this thread alone, which ends with it
        except OSError:
            return set()  # none of them
        return os.sched_getaffinity(0)

    if not cpus:
        return set()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(bind).result()


@dataclass(frozen=True)
class ServiceConfig:
    """One service.

    Attributes:
        url, options, run: the store, and the run in it.
        keep: retention, applied after each commit; empty keeps all.
        compress, depth: as of `Checkpointer`.
        linger_s: seconds that it stays, with what it holds, when trainers are gone that have not
            said goodbye: for a restart to find it. It writes what it holds in any case, unless for
            an hour nothing could be written.
        drain_s: seconds that SIGTERM leaves it for writing.
        peer_gone_s: seconds without a connection of a node that replicates to this one, after which
            it counts as lost: what it has not made durable is saved here.
        node: this node's name, where several play on one machine; None: HPCKIT_NODE or the host.
        log: file that it logs to; None: one beside its socket, which goes when all went well.
        local: as of `Checkpointer`.
    """

    url: str
    run: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold secrets
    keep: tuple[KeepPolicy, ...] = ()
    compress: bool = True
    depth: int = 1
    budget: Budget = field(default_factory=Budget)
    linger_s: float = 120.0
    drain_s: float = 60.0
    peer_gone_s: float = 10.0
    node: str | None = None
    log: str | None = None
    local: str | None = None

    def writing(self) -> WriteOptions:
        """How it writes."""
        encoder = ChunkEncoder(depth=self.depth) if self.compress else ChunkEncoder(None)
        return WriteOptions(threads=self.budget.cpu, encoder=encoder)


def absolute(config: ServiceConfig) -> ServiceConfig:
    """The same for a process that works in another folder."""
    url = config.url
    if not _SCHEME.match(url):
        url = os.path.abspath(Path(url).expanduser())  # noqa: PTH100, as the storage itself does
    log = str(Path(config.log).absolute()) if config.log else None
    return replace(config, url=url, log=log, local=own_disk(config.local))


def own_disk(local: str | os.PathLike[str] | None) -> str | None:
    """The absolute path of a folder on the node's own disk; None: there is none.

    Raises:
        ValueError: it is a URL.
    """
    if local is None:
        return None
    text = os.fspath(local)
    if not text or _SCHEME.match(text):
        raise ValueError(f"local is the path of a folder on each node's own disk, got {text!r}")
    return str(Path(text).expanduser().absolute())


def dump(config: ServiceConfig) -> str:
    """Raises:
    ServiceError: an option of the storage is no plain value.
    """
    keep = [_dump_policy(policy) for policy in config.keep]
    plain = {f.name: getattr(config, f.name) for f in fields(config)}
    plain |= {"keep": keep, "budget": asdict(config.budget), "options": dict(config.options)}
    try:
        return json.dumps(plain)
    except TypeError as error:
        raise ServiceError(
            f"options of the store have to be plain values, to reach the node's service: {error}"
        ) from error


def load(text: str) -> ServiceConfig:
    """The inverse of `dump`.

    Raises:
        KeyError, TypeError, ValueError: `text` comes from another version.
    """
    plain = json.loads(text)
    plain["keep"] = tuple(_load_policy(policy) for policy in plain["keep"])
    budget = plain["budget"]
    plain["budget"] = Budget(**{**budget, "cpus": tuple(budget["cpus"])})
    return ServiceConfig(**plain)


def _dump_policy(policy: KeepPolicy) -> dict[str, Any]:
    plain = {f.name: getattr(policy, f.name) for f in fields(policy)}
    if isinstance(policy, Only):
        plain["policy"] = _dump_policy(policy.policy)
    return {"kind": type(policy).__name__, **plain}


def _load_policy(plain: dict[str, Any]) -> Any:
    plain = dict(plain)
    kind = plain.pop("kind")
    if kind == Only.__name__:
        plain["policy"], plain["items"] = _load_policy(plain["policy"]), tuple(plain["items"])
    return _POLICIES[kind](**plain)
