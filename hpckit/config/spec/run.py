"""The spec of a run, which consists of all groups."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.alerts import AlertsSpec
from hpckit.config.spec.checkpoint import CheckpointSpec, EvalSpec
from hpckit.config.spec.cluster import ClusterSpec, LaunchSpec
from hpckit.config.spec.command import CommandSpec
from hpckit.config.spec.data import DataSpec
from hpckit.config.spec.debug import DebugSpec
from hpckit.config.spec.earlier_attributes import EarlierAttributes
from hpckit.config.spec.fault_tolerance import (
    ElasticSpec,
    HangSpec,
    HealSpec,
    HealthSpec,
    RetrySpec,
)
from hpckit.config.spec.field_types import GROUP, EntryPoint, RunName, Text
from hpckit.config.spec.fine_tuning import InitFromSpec, LoraSpec
from hpckit.config.spec.memory import MemorySpec
from hpckit.config.spec.metrics import MetricsSpec
from hpckit.config.spec.model import ModelSpec
from hpckit.config.spec.optim import OptimSpec
from hpckit.config.spec.training import ParallelSpec, PrecisionSpec, TrainSpec


@dataclass(frozen=True, config=GROUP)
class RunSpec(EarlierAttributes, group=""):
    """Everything that defines a run."""

    name: RunName
    """Name of the run. Its directory is named after it and the hash of the keys that identify
    it."""
    entry: EntryPoint | None
    """The training function, `module:function`; it is called with this spec. It must be null where
    `command` is given."""
    command: CommandSpec | None
    """The program that the workers execute in place of a training function; null: they call
    `entry`."""
    root: Text
    """Folder with the run directories."""
    cluster: ClusterSpec
    launch: LaunchSpec
    elastic: ElasticSpec
    retry: RetrySpec
    hang: HangSpec
    health: HealthSpec
    heal: HealSpec
    train: TrainSpec
    model: Annotated[ModelSpec, Field(discriminator="kind")]
    init_from: InitFromSpec | None
    lora: LoraSpec | None
    parallel: ParallelSpec
    precision: PrecisionSpec
    memory: MemorySpec
    data: DataSpec
    optim: OptimSpec
    checkpoint: CheckpointSpec
    metrics: MetricsSpec
    alerts: AlertsSpec
    eval: EvalSpec
    debug: DebugSpec
    user_config: dict[str, Any]
    """Your own keys. hpckit passes them to `entry` and never reads them."""
