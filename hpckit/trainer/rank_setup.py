"""The set-up of a rank: its device, the process group, the device mesh and its event log."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh

from hpckit.config.batch_size import global_batch
from hpckit.config.learning_rate import lr_scale
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import Event, EventLog
from hpckit.events.schema import AllReduceMeasured
from hpckit.ipc.heartbeat_table import HeartbeatWriter, WorkerPhase
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.trainer.device.device_capability import require_features
from hpckit.trainer.memory.memory_snapshot import record_allocations
from hpckit.trainer.parallel.collectives import check_all_reduce
from hpckit.trainer.parallel.device_mesh import MeshCoordinate, coordinate_in, make_mesh
from hpckit.trainer.parallel.process_group import (
    agreed_attempt,
    join_process_group,
    make_deterministic,
)


@dataclass(frozen=True)
class RankContext:
    """The context of a rank that is set up, which every part of the run loop works with."""

    cfg: RunSpec
    env: WorkerEnvironment
    heartbeats: HeartbeatWriter
    device: torch.device
    mesh: DeviceMesh
    coordinate: MeshCoordinate
    attempt: int
    """Number of this attempt within the generation, the same on all ranks."""
    events: EventLog
    """Event log of this rank."""

    @property
    def global_batch(self) -> int:
        """Number of samples of a step on all ranks together."""
        return global_batch(self.cfg, self.env.world_size)

    @property
    def local_batch(self) -> int:
        """Number of samples that this rank takes in a step."""
        return self.global_batch // self.coordinate.data_size

    @property
    def lr_scale(self) -> float:
        """Factor of the learning rate on this number of ranks: see `elastic.scale_lr` and
        `optim.scale`."""
        return lr_scale(self.cfg, self.env.world_size)

    def emit_once(self, event: Event) -> None:
        """Write an event on rank 0, once for all ranks."""
        if self.env.rank == 0:
            self.events.emit(event)


def set_up_rank(cfg: RunSpec, env: WorkerEnvironment) -> RankContext:
    """Set up this rank of the generation that `env` describes. Collective.

    Raises:
        TrainingError: the device lacks a feature that `cfg` asks for.
        WrongSumError: the check of `health.all_reduce` has failed.
    """
    heartbeats = env.attach_heartbeats()
    heartbeats.report(WorkerPhase.STARTING, step=0)
    if cfg.debug.deterministic:
        make_deterministic(cfg.train.seed)
    device = torch.device(env.device, env.local_rank if env.device == "cuda" else 0)
    require_features(cfg, device)
    if cfg.memory.snapshot:
        record_allocations(device)
    join_process_group(env.device, env.local_rank, cfg.launch.collective_timeout_s)
    mesh = make_mesh(env.device, cfg.parallel)
    attempt = agreed_attempt(env.attempt, env.local_world_size)
    at = env.at
    events = EventLog(at.run.events, generation=at.generation, attempt=attempt, rank=env.rank)
    context = RankContext(cfg, env, heartbeats, device, mesh, coordinate_in(mesh), attempt, events)
    if cfg.health.all_reduce:
        seconds = check_all_reduce(device)
        context.emit_once(AllReduceMeasured(seconds=seconds, world_size=env.world_size))
    return context
