"""How the agent is started in a container, as pure functions of the spec. Nothing here runs
anything.

The supervisor runs outside, as images have no scontrol and no srun.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.config.spec import ContainerSpec

# An image may set its own, and neither kind of container guarantees which one wins.
_IMPORTS = ("PYTHONPATH", "PYTHONSAFEPATH")


@dataclass(frozen=True)
class RunContainer:
    """The container of one run."""

    spec: ContainerSpec
    mounts: tuple[str, ...]
    """Mounts as source:target[:ro]."""
    workdir: Path
    """A mounted folder."""
    gpus: bool

    def srun_options(self) -> list[str]:
        """Returns the options of srun for pyxis."""
        if self.spec.kind != "pyxis":
            return []
        return [
            f"--container-image={self.spec.image}",
            f"--container-mounts={','.join(self.mounts)}",
            f"--container-workdir={self.workdir}",
            *self.spec.options,
        ]

    def wrapped(self, command: Sequence[str]) -> list[str]:
        """Returns `command`, which srun starts, wrapped in apptainer."""
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
        """Returns the path of Python inside of the container."""
        return self.spec.python or launching


def inside(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for an agent in a container, beside its place: how Python finds the
    snapshot, and a folder for sockets, as that of the login session is missing there."""
    sockets = env.get("HPCKIT_RUNTIME_DIR", f"/tmp/hpckit-{os.getuid()}")
    return {name: env[name] for name in _IMPORTS if name in env} | {"HPCKIT_RUNTIME_DIR": sockets}
