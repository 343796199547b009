"""A cluster outlives whoever started it; one of the tests does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm.devcluster import tools
from slurm.devcluster.cluster import Cluster
from slurm.devcluster.options import ClusterOptions

_DOWN = Path(tools.__file__).with_name("down")
_WAIT = 'read line; exec "$@"'  # until nobody can write a line any more


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """A cluster in `folder` is taken down if this process is killed."""
    down = [sys.executable, str(_DOWN), "--folder", str(folder)]
    with subprocess.Popen(
        ["sh", "-c", _WAIT, "sh", *down],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ):
        yield


@contextmanager
def cluster(folder: Path, options: ClusterOptions) -> Iterator[Cluster]:
    """A cluster that ends with the block, or with this process."""
    with guarded(folder), Cluster.up(folder, options) as found:
        yield found
