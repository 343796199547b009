"""The options of a `Checkpointer`, as one value that can be made once and passed on."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Required, TypedDict

from checkpointing.events import OnEvent
from checkpointing.format.object_keys import check_run
from checkpointing.restore.peer_replicas import check_replica_count
from checkpointing.retention import KeepPolicy
from checkpointing.save.replica_check import CheckReplicas, ReplicaCheck
from checkpointing.save.save_options import SaveOptions, Staging
from checkpointing.save_policy import SavePolicy
from checkpointing.service.config import Budget, Compress, ServiceConfig, check_compress, own_disk
from checkpointing.state.per_rank import Differing
from checkpointing.store_url import local_folder


@dataclass(frozen=True, kw_only=True)
class CheckpointerOptions:
    """The options of a `Checkpointer`.

    Attributes:
        run: name of the run in the store.
        every: when `due` returns True: `Steps(50)`, `Minutes(10)`, `Auto(mtbf_s=3600)`, or several
            joined by |; None: never.
        keep: which checkpoints to keep; empty keeps all.
        compress: store chunks compressed, or as the difference to an earlier save, where that saves
            space. "auto": only while the store takes longer to write than that takes, as measured
            over uploads of 8 MiB and more: a save to a fast store is durable sooner then, and
            larger. True: always, as far as a deadline leaves time; False: never.
        depth: the largest number of earlier saves that a reader of such a difference has to read; a
            larger one stores less and reads more (`benchmarks/README.md` has measurements).
        options: options of the storage, see `checkpointing.storage.open_storage`; plain values
            only.
        on_event: called as `on_event(kind, **fields)` on rank 0, from the trainer's thread or
            another. None: events go to the file that the variable CHECKPOINTING_EVENTS names, if
            it is set (`checkpointing.event_file`).
        slots: the number of snapshots of each rank that its node's memory holds. With 2 the last
            one stays whole while the next is copied; more bridge a slow store.
        staging: "slots"; or "buckets" where a node is short of memory: the state passes through a
            tenth of its size, and `save` blocks for as long as the service needs to read it. No
            snapshot is left in memory then to resume from.
        overlap: copy parameters and optimizer state while training continues; the optimizers' steps
            wait for it. Do not use it where something other than the optimizers in `state` writes
            to them: a save in which such a write is detected fails.
        budget: what the service may use of its node (CPU, memory, bandwidth).
        local: the spool, a folder of the user on each node's own disk, created with mode 0700 if it
            does not exist. A snapshot with a deadline that the store would miss is copied there
            first, where the next trainers on the node find it; the copy is removed when the
            snapshot is durable. None: no such copies.
        max_unsaved: minutes without a new durable checkpoint after which `save` raises, rather than
            put ever more training at risk; None: never.
        differing: what happens with values and small tensors outside modules and optimizers that
            are not the same on all ranks and are not declared as `PerRank`. "error": `restore`, or
            the first `save` if that comes first, raises SaveError and names them; "warn": a warning
            is logged and one rank's are saved for all.
        check_replicas: when replicas (of a tensor) are compared by fingerprints, without a
            collective. "every": at every save; a number n: at the first of every n saves; False:
            never. A checkpoint whose replicas differ is committed with a difference mark: an event
            and the log name the tensors and ranks, and `restore` prefers the newest checkpoint
            without a mark.
        may_differ: `fnmatch` patterns for the names of tensors and values that may differ between
            ranks, which are not compared.
        replicas: 1: the next node also keeps the two newest snapshots of each rank in its memory,
            so that the loss of one node loses none of them; 0: no replicas.

    Raises:
        TypeError: `run`, `every`, `keep` or `overlap` has a value of another type.
        ValueError: an option has a value that it cannot have.
    """

    run: str
    every: SavePolicy | None = None
    keep: Sequence[KeepPolicy] = ()
    compress: Compress = "auto"
    depth: int = 1
    options: Mapping[str, Any] | None = None
    on_event: OnEvent | None = None
    slots: int = 2
    staging: Staging = "slots"
    overlap: bool = True
    budget: Budget | None = None
    local: str | os.PathLike[str] | None = None
    max_unsaved: float | None = None
    replicas: int = 0
    differing: Differing = "error"
    check_replicas: CheckReplicas = "every"
    may_differ: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check_types(self)
        check_run(self.run)
        _ = self.save_options  # which checks its values when it is made
        check_replica_count(self.replicas, self.staging)
        check_compress(self.compress)
        own_disk(self.local)

    @property
    def save_options(self) -> SaveOptions:
        """The options of the save pipeline, which are among these."""
        check = ReplicaCheck.of(
            self.check_replicas, self.may_differ, with_values=self.differing == "error"
        )
        return SaveOptions(
            check,
            self.staging,
            self.slots,
            self.overlap,
            self.differing,
            self.max_unsaved,
        )

    def service_config(self, root: str | os.PathLike[str]) -> ServiceConfig:
        """Returns the configuration of a service that writes to the store at `root`."""
        return ServiceConfig(
            url=str(local_folder(root) or root),
            run=self.run,
            options=dict(self.options or {}),
            keep=tuple(self.keep),
            compress=self.compress,
            depth=self.depth,
            budget=self.budget or Budget(),
            local=own_disk(self.local),
        )


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Raise TypeError for a keyword that is no option of a `Checkpointer`, or without `run`."""
    names = [option.name for option in fields(CheckpointerOptions)]
    for name in keywords:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.65)
            hint = f"; did you mean {near[0]}?" if near else f"; they are {', '.join(names)}"
            raise TypeError(f"Checkpointer: no option is named {name}{hint}")
    if "run" not in keywords:
        raise TypeError("Checkpointer: give run=NAME, the name of the run in the store")


def _check_types(options: CheckpointerOptions) -> None:
    """Raise TypeError where users of other checkpoint libraries would write something else."""
    if not isinstance(options.run, str):
        raise TypeError(f"run must be text, got {options.run!r}")
    if not isinstance(options.every, SavePolicy | None):
        raise TypeError(
            f"every must be a policy, such as Steps(100), Minutes(10) or Auto(), got "
            f"{options.every!r}"
        )
    is_list = isinstance(options.keep, Sequence)
    if not is_list or not all(isinstance(one, KeepPolicy) for one in options.keep):
        raise TypeError(
            f"keep must be a list of policies, such as [Last(3), Every(1000)], got {options.keep!r}"
        )
    if not isinstance(options.overlap, bool):
        raise TypeError(f"overlap must be True or False, got {options.overlap!r}")


class CheckpointerKeywords(TypedDict, total=False):
    """The options of a `Checkpointer` as keywords; `CheckpointerOptions` describes them."""

    run: Required[str]
    every: SavePolicy | None
    keep: Sequence[KeepPolicy]
    compress: Compress
    depth: int
    options: Mapping[str, Any] | None
    on_event: OnEvent | None
    slots: int
    staging: Staging
    overlap: bool
    budget: Budget | None
    local: str | os.PathLike[str] | None
    max_unsaved: float | None
    replicas: int
    differing: Differing
    check_replicas: CheckReplicas
    may_differ: Sequence[str]
