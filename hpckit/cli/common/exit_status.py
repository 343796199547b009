"""The exit statuses of `hpckit`."""

from __future__ import annotations

FOUND, REFUSED, OUT_OF_REACH, NOT_ALL = 1, 2, 3, 4
MEANINGS = {
    0: "as asked",
    FOUND: "something is wrong with what was looked at",
    REFUSED: "not possible as asked, nothing was done",
    OUT_OF_REACH: "a store, a service, Slurm or the machine does not answer",
    NOT_ALL: "the cache holds not all that `data warm` was to fetch",
}
TOLD = (
    "Exit status: "
    + "; ".join(f"{status} {meaning}" for status, meaning in MEANINGS.items())
    + ". Launch and resume have more for how a run ended: hpckit launch --help."
)
