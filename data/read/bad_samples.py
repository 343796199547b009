"""The policy for samples that cannot be read or transformed."""

import logging
import threading
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from data.errors import DataError, SampleError

Policy: TypeAlias = Literal["raise", "skip", "substitute"]

SUBSTITUTES = 8
"""The number of other samples that are tried in place of a bad one before its error is raised."""
_LOGGED = 20  # errors that are logged one by one; after that every hundredth

_log = logging.getLogger(__name__)


@dataclass
class BadSampleBudget:
    """The policy for bad samples, and how many more are accepted. Thread-safe.

    "raise" ends the iteration with the error; "skip" leaves the sample out, so that the batch is
    smaller; "substitute" takes another sample of the same stream, which is the same on any number
    of ranks. The error is also raised after more than `most` bad samples in all, or `most_in_a_row`
    with no good one between them.
    """

    policy: Policy = "raise"
    most: int = 100
    most_in_a_row: int = 10
    count: int = 0
    """The number of bad samples so far."""
    in_a_row: int = 0
    """The number of bad samples since the last good one."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise DataError(f"errors must be one of {get_args(Policy)}, got {self.policy!r}")
        if self.most < 0 or self.most_in_a_row < 0:
            raise DataError("budgets of errors must not be negative")

    def good(self) -> None:
        """Note that a sample was read."""
        self.in_a_row = 0

    def bad(self, error: SampleError) -> None:
        """Note that a sample failed. Raises the error if the policy does not accept it."""
        if self.policy == "raise":
            raise error
        with self._lock:
            self.count += 1
            self.in_a_row += 1
            count, in_a_row = self.count, self.in_a_row
        if count > self.most or in_a_row > self.most_in_a_row:
            raise DataError(
                f"{count} samples were bad, {in_a_row} of them one after another: more than"
                f" {self.most} or {self.most_in_a_row}; the last was {error}"
            ) from error
        if count <= _LOGGED or count % 100 == 0:
            what = "skipped" if self.policy == "skip" else "replaced"
            _log.warning("bad sample %d is %s: %s", count, what, error)

    def __getstate__(self) -> dict[str, object]:
        """Pickle the policy without its lock; in another process it counts for itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())
