"""What a service is started with: one JSON object on its standard input, because a command line is
there for everybody to read and a storage's options may hold secrets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from checkpointing.errors import ServiceError
from checkpointing.retention import Best, Buckets, Every, KeepPolicy, Last, Only
from checkpointing.store.encoding import ChunkEncoder
from checkpointing.store.writer import THREADS, Options

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_POLICIES = {policy.__name__: policy for policy in (Last, Every, Best, Buckets, Only)}


@dataclass(frozen=True)
class Budget:
    """What a service may take of its node.

    Attributes:
        cpu: threads that hash and encode.
        cpus: cores that it keeps to; empty: any.
        nice: added to its niceness, so that trainers come first.
        bytes_per_s: upper bound of what it sends to the store; None: none.
    """

    cpu: int = THREADS
    cpus: tuple[int, ...] = ()
    nice: int = 10
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.cpu < 1:
            raise ValueError(f"cpu is a number of threads, at least 1, got {self.cpu}")
        if not 0 <= self.nice <= 19:
            raise ValueError(f"nice is from 0 to 19, got {self.nice}")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise ValueError(f"bytes_per_s has to be above 0, got {self.bytes_per_s}")
        if unknown := set(self.cpus) - os.sched_getaffinity(0):
            raise ValueError(f"cpus {sorted(unknown)} are none that this process may use")


@dataclass(frozen=True)
class Config:
    """One service.

    Attributes:
        url, options, run: the store, and the run in it.
        keep: retention, applied after each commit; empty keeps all.
        compress, depth: as of `Checkpointer`.
        linger_s: seconds that it stays, with what it holds, when trainers are gone that have not
            said goodbye: for a restart to find it. It writes what it holds in any case, unless for
            an hour nothing could be written.
        drain_s: seconds that SIGTERM leaves it for writing.
        node: this node's name, where several play on one machine; None: HPCKIT_NODE or the host.
        log: file that it logs to; None: one beside its socket, which goes when all went well.
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
    node: str | None = None
    log: str | None = None

    def writing(self) -> Options:
        """How it writes."""
        encoder = ChunkEncoder(depth=self.depth) if self.compress else ChunkEncoder(None)
        return Options(threads=self.budget.cpu, encoder=encoder)


def absolute(config: Config) -> Config:
    """The same for a process that works in another folder."""
    url = config.url
    if not _SCHEME.match(url):
        url = os.path.abspath(Path(url).expanduser())  # noqa: PTH100, as the storage itself does
    log = str(Path(config.log).absolute()) if config.log else None
    return replace(config, url=url, log=log)


def dump(config: Config) -> str:
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


def load(text: str) -> Config:
    """The inverse of `dump`.

    Raises:
        KeyError, TypeError, ValueError: `text` comes from another version.
    """
    plain = json.loads(text)
    plain["keep"] = tuple(_load_policy(policy) for policy in plain["keep"])
    budget = plain["budget"]
    plain["budget"] = Budget(**{**budget, "cpus": tuple(budget["cpus"])})
    return Config(**plain)


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
