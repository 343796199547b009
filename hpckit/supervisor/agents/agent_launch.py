"""Start of agents on the nodes of a submission: simulated nodes on this machine, or the nodes of a
Slurm job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpckit.agent.agent import GenerationStart
from hpckit.agent.device_assignment import choose_devices, even_share
from hpckit.agent.message_channel import Message
from hpckit.agent.rendezvous_store import RendezvousStore
from hpckit.config.rules.violations import most_nodes
from hpckit.config.spec import RunSpec
from hpckit.ipc.process_environment import agent_variables, job_variables
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import Allocation, srun
from hpckit.slurm.container import RunContainer, inside
from hpckit.slurm.container_mounts import all_mounts, shared_folders
from hpckit.slurm.environment import environment_for, job_facts
from hpckit.supervisor.agents.agent_logs import AgentLogs
from hpckit.system.child_processes import Process, spawn_piped

_WATCHDOG = ("-m", "hpckit.agent.watchdog")
_WATCHDOG_VARIABLES = {"PYTHONUNBUFFERED": "1"}
"""Variables that an interpreter reads when it starts, as torchrun has them: the watchdog forks what
forks the workers."""


@dataclass(frozen=True)
class GenerationSetup:
    """The start message of each node of a generation, and a note for the events, if any."""

    starts: dict[int, GenerationStart]
    note: str | None = None


class JobNodes(Protocol):
    """The nodes on which the supervisor starts agents."""

    @property
    def logs(self) -> AgentLogs:
        """The log files of the agents."""

    @property
    def address(self) -> str | None:
        """The address that the rendezvous store listens on. None: all addresses."""

    @property
    def count(self) -> int:
        """The number of nodes, with spares."""

    def start_agent(self, node: int) -> Process: ...

    def generation_setup(
        self,
        generation: int,
        hellos: Mapping[int, Message],
        store: RendezvousStore,
        *,
        is_memory_here: bool,
    ) -> GenerationSetup:
        """Returns the start messages for the nodes that have said hello.

        Args:
            is_memory_here: as in `GenerationStart`.

        Raises:
            ValueError: there are too few GPUs.
        """


class LocalNodes:
    """Simulated nodes: processes of this machine, which share its cores and GPUs."""

    def __init__(self, spec: RunSpec, run: RunDir, submission: int, gpus: Sequence[str]) -> None:
        assert spec.cluster.address is not None  # the spec is valid
        self.address: str | None = spec.cluster.address
        self.count = most_nodes(spec)
        self._spec, self._run, self._submission, self._gpus = spec, run, submission, gpus
        self.logs = AgentLogs(run)

    def start_agent(self, node: int) -> Process:
        env = environment() | _WATCHDOG_VARIABLES
        env |= agent_variables(self._run, self._submission, node)
        return spawn_piped(
            [sys.executable, *_WATCHDOG], env, self.logs.start_log(node), is_written_to=True
        )

    def generation_setup(
        self,
        generation: int,
        hellos: Mapping[int, Message],
        store: RendezvousStore,
        *,
        is_memory_here: bool,
    ) -> GenerationSetup:
        launch = self._spec.launch
        workers = len(hellos) * launch.nproc_per_node
        devices = choose_devices(self._spec.cluster.device, workers, self._gpus)
        starts = {
            node: GenerationStart(
                generation=generation,
                nodes=len(hellos),
                place=place,
                host=store.host,
                port=store.port,
                token=store.token,
                device=devices.kind,
                gpus=devices.of_node(place, launch.nproc_per_node),
                threads=launch.threads_per_worker or even_share(workers),
                is_memory_here=is_memory_here,
            )
            for place, node in enumerate(hellos)
        }
        return GenerationSetup(starts, devices.note)


class SlurmNodes:
    """The nodes of a Slurm job, numbered by their place in its node list."""

    address: str | None = None  # each node gets an address that it can reach

    def __init__(self, spec: RunSpec, run: RunDir, submission: int, allocation: Allocation) -> None:
        self._spec, self._run, self._submission = spec, run, submission
        self._allocation, self.count = allocation, len(allocation.hosts)
        self.logs = AgentLogs(run)
        self._container = run_container(spec, run)
        for folder in shared_folders(spec, run) if self._container else ():
            folder.mkdir(parents=True, exist_ok=True)

    def start_agent(self, node: int) -> Process:
        variables = agent_variables(self._run, self._submission, node)
        variables |= job_variables(self._allocation.job, self._allocation.hosts[0])
        host, python, container = self._allocation.hosts[node], sys.executable, self._container
        if container is not None:
            variables |= inside(os.environ)
            python = container.interpreter(python)
        passed = self._spec.cluster.slurm.pass_environment if self._spec.cluster.slurm else ()
        variables = job_facts(os.environ, passed) | _WATCHDOG_VARIABLES | variables
        command = srun(host, variables, [python, *_WATCHDOG], container)
        env = environment_for("step", os.environ, passed)
        return spawn_piped(command, env, self.logs.start_log(node), is_written_to=True)

    def generation_setup(
        self,
        generation: int,
        hellos: Mapping[int, Message],
        store: RendezvousStore,
        *,
        is_memory_here: bool,
    ) -> GenerationSetup:
        launch = self._spec.launch
        fewest = min(int(hello["gpus"]) for hello in hellos.values())
        names = [str(number) for number in range(fewest)]
        devices = choose_devices(self._spec.cluster.device, launch.nproc_per_node, names)
        starts = {
            node: GenerationStart(
                generation=generation,
                nodes=len(hellos),
                place=place,
                host=hello["launcher"] or store.host,
                port=store.port,
                token=store.token,
                device=devices.kind,
                gpus=None if devices.kind == "cuda" else "",
                threads=launch.threads_per_worker or None,
                is_memory_here=is_memory_here,
                supervised_at=next((i for i, other in enumerate(hellos) if other == 0), None),
            )
            for place, (node, hello) in enumerate(hellos.items())
        }
        return GenerationSetup(starts, devices.note)


def run_container(spec: RunSpec, run: RunDir) -> RunContainer | None:
    """Returns the container in which the agents of a run run, or None if there is none."""
    slurm = spec.cluster.slurm
    if slurm is None or slurm.container is None:
        return None
    gpus = spec.cluster.device != "cpu"
    return RunContainer(slurm.container, all_mounts(spec, run), run.path, gpus)


def environment() -> dict[str, str]:
    """Returns this process's environment without the variables that submitit set for this process
    alone."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SUBMITIT_")}
