"""The options of a `Follower`, as one value."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypedDict

from checkpointing.follower.dtype_casts import check_target
from checkpointing.follower.follow_targets import OnStep
from checkpointing.follower.step_choice import Order
from checkpointing.format.object_keys import check_run


@dataclass(frozen=True, kw_only=True)
class FollowerOptions:
    """The options of a `Follower`.

    Attributes:
        run: name of the run in the store. It need not exist yet.
        into: where the weights of each step go: "shm:NAME", into the shared memory of this node,
            for `SharedWeights(NAME)`; a folder, as `step-N.safetensors` and a link
            `latest.safetensors`; or a function `on_step(step, tensors, changed)`. Its tensors are
            torch's, by name, on the CPU, and valid until the next call begins; `changed` has the
            names of those that differ from the step before.
        every: fewest steps between two that are taken.
        order: "newest": of several new steps the newest is taken; "each": one after the other.
        names: `fnmatch` patterns of full names, such as "model/layers.*"; empty: all tensors of the
            item "model".
        dtype: "float32", "float16" or "bfloat16": floating-point tensors of 16 bits and more are
            cast to it, rounded to the nearest; None: they are as saved.
        keep: how many files `step-N.safetensors` are kept.
        interval_s: seconds between two listings of the run, more or less a fifth.
        give_up_s: seconds after which a store that stays out of reach is given up.
        options: options of the storage, see `checkpointing.storage.open_storage`.

    Raises:
        ValueError: an option has a value that it cannot have.
    """

    run: str
    into: str | os.PathLike[str] | OnStep
    every: int = 1
    order: Order = "newest"
    names: Sequence[str] = ()
    dtype: str | None = None
    keep: int = 2
    interval_s: float = 5.0
    give_up_s: float = 3600.0
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_run(self.run)
        check_target(self.dtype)
        if isinstance(self.names, str):
            raise ValueError(f"names must be a list of patterns, got {self.names!r}")
        for name in ("every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("interval_s", "give_up_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0 seconds, got {getattr(self, name)}")
        if self.order not in ("newest", "each"):
            raise ValueError(f"order must be 'newest' or 'each', got {self.order!r}")


class FollowerKeywords(TypedDict, total=False):
    """The options of a `Follower` as keywords; `FollowerOptions` describes them."""

    run: Required[str]
    into: Required[str | os.PathLike[str] | OnStep]
    every: int
    order: Order
    names: Sequence[str]
    dtype: str | None
    keep: int
    interval_s: float
    give_up_s: float
    options: Mapping[str, Any] | None
