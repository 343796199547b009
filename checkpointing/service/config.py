"""The configuration that a service is started with: one JSON object on its standard input, because
everybody can read a command line and the options of a storage may hold secrets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from checkpointing.errors import ServiceError
from checkpointing.retention import Best, Buckets, Every, KeepPolicy, Last, Only, Unevaluated
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.part_writer import THREADS, WriteOptions

RECOVER_S = 240.0  # seconds in which a starting service may read what lies on its node's own disk
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
Compress: TypeAlias = bool | Literal["auto"]
_POLICIES = {policy.__name__: policy for policy in (Last, Every, Best, Buckets, Unevaluated, Only)}


@dataclass(frozen=True)
class Budget:
    """The limits on what a service may use of its node.

    Attributes:
        cpu: number of threads that hash and encode.
        cpus: cores that the service binds itself to, which may be other ones than those that a
            trainer is bound to; empty: those of the process that starts it.
        nice: what is added to its niceness, so that trainers come first.
        bytes_per_s: upper bound of what it sends to the store; None: no bound.
        local_bytes: upper bound of the run's snapshots on the node's own disk; None: the size of
            the disk.
        peer_bytes_per_s: upper bound of the replicas that it sends to another node; None: no bound.
    """

    cpu: int = THREADS
    cpus: tuple[int, ...] = ()
    nice: int = 10
    bytes_per_s: float | None = None
    peer_bytes_per_s: float | None = None
    local_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.cpu < 1:
            raise ValueError(f"cpu must be a number of threads, at least 1, got {self.cpu}")
        if not 0 <= self.nice <= 19:
            raise ValueError(f"nice must be from 0 to 19, got {self.nice}")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise ValueError(f"bytes_per_s must be above 0, got {self.bytes_per_s}")
        if self.peer_bytes_per_s is not None and self.peer_bytes_per_s <= 0:
            raise ValueError(f"peer_bytes_per_s must be above 0, got {self.peer_bytes_per_s}")
        if self.local_bytes is not None and self.local_bytes <= 0:
            raise ValueError(f"local_bytes must be above 0, got {self.local_bytes}")
        if unknown := set(self.cpus) - usable(self.cpus):
            raise ValueError(
                f"cpus {sorted(unknown)} are not among those that processes here may use"
            )


def usable(cpus: Collection[int]) -> set[int]:
    """Return those of the cores that a process may bind itself to, whatever this one is bound
    to."""

    def bind() -> set[int]:
        try:
            os.sched_setaffinity(0, cpus)  # binds this thread alone, which ends with the binding
        except OSError:
            return set()  # none of them is usable
        return os.sched_getaffinity(0)

    if not cpus:
        return set()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(bind).result()


@dataclass(frozen=True)
class ServiceConfig:
    """The configuration of one service.

    Attributes:
        url, options, run: the store, and the run in it.
        keep: retention policies, applied after each commit; empty keeps all.
        compress, depth: as of `Checkpointer`.
        linger_s: seconds that the service stays, with what it holds, when trainers are gone without
            having said goodbye, so that a restart finds it. It writes what it holds in any case,
            unless nothing could be written for an hour.
        drain_s: seconds that SIGTERM leaves it for writing.
        peer_gone_s: seconds without a connection of a node that replicates to this one, after which
            that node counts as lost and what it has not made durable is saved here.
        node: this node's name, where several nodes are simulated on one machine; None: HPCKIT_NODE
            or the host name.
        log: the log file; None: a file beside the socket, which is removed when all went well.
        local: as of `Checkpointer`.
    """

    url: str
    run: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold secrets
    keep: tuple[KeepPolicy, ...] = ()
    compress: Compress = "auto"
    depth: int = 1
    budget: Budget = field(default_factory=Budget)
    linger_s: float = 120.0
    drain_s: float = 60.0
    peer_gone_s: float = 10.0
    node: str | None = None
    log: str | None = None
    local: str | None = None

    def writing(self) -> WriteOptions:
        """How the service writes chunks."""
        encoder = ChunkEncoder(depth=self.depth) if self.compress else ChunkEncoder(None)
        is_auto = self.compress == "auto"
        return WriteOptions(threads=self.budget.cpu, encoder=encoder, only_if_slower=is_auto)


def check_compress(compress: Any) -> None:
    """Raise ValueError if a value of `compress` is none that it can have."""
    if compress not in (True, False, "auto"):
        raise ValueError(f"compress must be True, False or 'auto', got {compress!r}")


def absolute(config: ServiceConfig) -> ServiceConfig:
    """Return the configuration with absolute paths, for a process that works in another folder."""
    url = config.url
    if not _SCHEME.match(url):
        url = os.path.abspath(Path(url).expanduser())  # noqa: PTH100, as the storage itself does
    log = str(Path(config.log).absolute()) if config.log else None
    return replace(config, url=url, log=log, local=own_disk(config.local))


def own_disk(local: str | os.PathLike[str] | None) -> str | None:
    """Return the absolute path of a folder on the node's own disk; None if there is none.

    Raises:
        ValueError: `local` is a URL.
    """
    if local is None:
        return None
    text = os.fspath(local)
    if not text or _SCHEME.match(text):
        raise ValueError(
            f"local must be the path of a folder on each node's own disk, got {text!r}"
        )
    return str(Path(text).expanduser().absolute())


def dump(config: ServiceConfig) -> str:
    """Return the configuration as JSON.

    Raises:
        ServiceError: an option of the storage is not a plain value.
    """
    keep = [_dump_policy(policy) for policy in config.keep]
    plain = {f.name: getattr(config, f.name) for f in fields(config)}
    plain |= {"keep": keep, "budget": asdict(config.budget), "options": dict(config.options)}
    try:
        return json.dumps(plain)
    except TypeError as error:
        raise ServiceError(
            "options of the store must be plain values, which can be sent to the node's service: "
            f"{error}"
        ) from error


def load(text: str) -> ServiceConfig:
    """Return the configuration from JSON: the inverse of `dump`.

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
