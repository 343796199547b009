"""Environment variables of a site for its workers, which are passed unchanged and never by a
shell."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from checkpointing import CheckpointError
from checkpointing.service.private_folder import make
from hpckit.config.spec import SlurmSpec

log = logging.getLogger(__name__)


def variables_of(slurm: SlurmSpec | None) -> dict[str, str]:
    """Returns the variables that workers on this node get by the spec."""
    if slurm is None:
        return {}
    caches = cache_variables(slurm.scratch) if slurm.scratch is not None else {}
    return caches | site_variables(slurm)


def site_variables(slurm: SlurmSpec) -> dict[str, str]:
    """Returns the variables that depend on the spec alone."""
    found = {name: str(value) for name, value in slurm.env.items()}
    if slurm.interface is not None:
        found |= dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), slurm.interface)
    return found


def cache_variables(scratch: str) -> dict[str, str]:
    """Returns variables that place compilers' caches in a folder on this node's disk that only this
    user can access, as code is loaded from there. Returns none if there is no such folder, which
    costs only time."""
    folder = Path(scratch) / f"hpckit-cache-{os.getuid()}"
    try:
        make(folder)
    except (CheckpointError, OSError) as error:
        log.warning("cannot make caches in cluster.slurm.scratch: %s", error)
        return {}
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
