"""The exit statuses of `hpckit`."""

from __future__ import annotations

FOUND, REFUSED, OUT_OF_REACH, NOT_ALL = 1, 2, 3, 4
MEANINGS = {
    0: "success",
    FOUND: "a problem was found in what was checked",
    REFUSED: "the request is not possible, and nothing was done",
    OUT_OF_REACH: "a store, a service, Slurm or the machine does not answer",
    NOT_ALL: "`data warm` could not fetch, or `data verify --full` could not verify, everything",
}
EXIT_STATUS_HELP = (
    "Exit status: "
    + "; ".join(f"{status} {meaning}" for status, meaning in MEANINGS.items())
    + ". Launch and resume have further statuses for how a run ended: hpckit launch --help."
)
