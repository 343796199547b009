"""How an agent gets into its container: pure functions of the spec. Nothing here is run.

The supervisor is outside: images have no scontrol and no srun.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.config.spec import ContainerSpec

# An image may have its own, and neither kind promises which one wins.
_IMPORTS = ("PYTHONPATH", "PYTHONSAFEPATH")


@dataclass(frozen=True)
class RunContainer:
    """The container of one run."""

    spec: ContainerSpec
    mounts: tuple[str, ...]
    """source:target[:ro] each."""
    workdir: Path
    """A folder that is mounted."""
    gpus: bool

    def srun_options(self) -> list[str]:
        """Of srun, for pyxis."""
        if self.spec.kind != "pyxis":
            return []
        return [
            f"--container-image={self.spec.image}",
            f"--container-mounts={','.join(self.mounts)}",
            f"--container-workdir={self.workdir}",
            *self.spec.options,
        ]

    def wrapped(self, command: Sequence[str]) -> list[str]:
        """`command`, which srun starts, by way of apptainer."""
        if self.spec.kind != "apptainer":
            return list(command)
        binds = [word for mount in self.mounts for word in ("--bind", mount)]
        gpus = ["--nv"] if self.gpus else []
        pwd = ["--pwd", str(self.workdir)]
        return [
            "apptainer",
            "exec",
            *gpus,
            *binds,
            *pwd,
            *self.spec.options,
            self.spec.image,
            *command,
        ]

    def interpreter(self, launching: str) -> str:
        """Python, as it is called inside."""
        return self.spec.python or launching


def inside(env: Mapping[str, str]) -> dict[str, str]:
    """What is told to an agent in a container, beside its place: how Python finds the snapshot, and
    a folder for sockets, since the one of the login session is not there."""
    sockets = env.get("HPCKIT_RUNTIME_DIR", f"/tmp/hpckit-{os.getuid()}")
    return {name: env[name] for name in _IMPORTS if name in env} | {"HPCKIT_RUNTIME_DIR": sockets}
