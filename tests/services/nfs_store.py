"""A checkpoint store on a real NFS that fails; run inside, under `run_in_nfs`.

`python -m tests.services.nfs_store` runs every scenario of `nfs_store_*.py` in a process of its own
and prints a line for each that ended well: "RESULT", its name, seconds, and what it found, as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable

from tests.services import (
    nfs_control,
    nfs_store_clients,
    nfs_store_crash,
    nfs_store_outage,
    nfs_store_space,
    nfs_store_stale,
)

RESULT = "RESULT"
_LONGEST_S = 200  # of one scenario: what hangs fails alone
# in this order: after the last ones the first mount is of no use
SCENARIOS: dict[str, Callable[[], object]] = {
    name: getattr(module, name)
    for module in (
        nfs_store_crash,
        nfs_store_clients,
        nfs_store_space,
        nfs_store_outage,
        nfs_store_stale,
    )
    for name in module.SCENARIOS
}


def main(chosen: list[str]) -> None:
    context = multiprocessing.get_context("fork")
    nfs_control.second_client()
    for name in chosen or SCENARIOS:
        process = context.Process(target=_run, args=(name,))
        process.start()
        process.join(_LONGEST_S)
        if process.is_alive():
            print(f"{name}: still running after {_LONGEST_S} s", flush=True)
            process.kill()
            process.join()


def _run(name: str) -> None:
    began_s = time.monotonic()
    found = SCENARIOS[name]()
    print(RESULT, name, f"{time.monotonic() - began_s:.1f}", json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
