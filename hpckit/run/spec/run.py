"""All groups together."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.run.spec.checkpoint import CheckpointSpec
from hpckit.run.spec.cluster import ClusterSpec, LaunchSpec
from hpckit.run.spec.data import DataSpec
from hpckit.run.spec.debug import DebugSpec
from hpckit.run.spec.fields import GROUP, EntryPoint, RunName, Text
from hpckit.run.spec.lora import LoraSpec
from hpckit.run.spec.memory import MemorySpec
from hpckit.run.spec.metrics import MetricsSpec
from hpckit.run.spec.model import ModelSpec
from hpckit.run.spec.optim import OptimSpec
from hpckit.run.spec.start import StartSpec
from hpckit.run.spec.survival import ElasticSpec, HangSpec, HealthSpec, RetrySpec
from hpckit.run.spec.training import ParallelSpec, PrecisionSpec, TrainSpec


@dataclass(frozen=True, config=GROUP)
class RunSpec:
    """All that a run is made of."""

    name: RunName
    """Name of the run; with the hash of what identifies it, the name of its directory."""
    entry: EntryPoint
    """The training function, `module:function`; it is called with this spec."""
    root: Text
    """Folder of the run directories."""
    cluster: ClusterSpec
    launch: LaunchSpec
    elastic: ElasticSpec
    retry: RetrySpec
    hang: HangSpec
    health: HealthSpec
    train: TrainSpec
    model: Annotated[ModelSpec, Field(discriminator="kind")]
    start: StartSpec | None
    lora: LoraSpec | None
    parallel: ParallelSpec
    precision: PrecisionSpec
    memory: MemorySpec
    data: DataSpec
    optim: OptimSpec
    checkpoint: CheckpointSpec
    metrics: MetricsSpec
    debug: DebugSpec
    app: dict[str, Any]
    """Your own keys; hpckit hands them to `entry` and never looks inside."""
