"""The run's spec: one frozen dataclass per config group, one docstring per key.

The values live in `conf/`; these files say what a key means, its type and its bounds. Nothing here
has a default, so a spec always states everything it was made of. `hpckit.config.rules.violations`
holds the rules that span groups, `hpckit.config.spec_parser` turns plain data into a `RunSpec` or a
list of violations.
"""

from __future__ import annotations

from hpckit.config.spec.alerts import AlertKind, AlertsSpec, EmailSpec, WebhookSpec
from hpckit.config.spec.checkpoint import CheckpointSpec, EvalSlurmSpec, EvalSpec, KeepSpec
from hpckit.config.spec.cluster import (
    ClusterSpec,
    ContainerSpec,
    LaunchSpec,
    SlurmSpec,
    SuspectsSpec,
)
from hpckit.config.spec.command import CommandSpec
from hpckit.config.spec.data import (
    DataSpec,
    ImagesSpec,
    MixtureSourceSpec,
    MixtureSpec,
    MixtureStageSpec,
    PackSpec,
)
from hpckit.config.spec.debug import CanarySpec, DebugSpec, DrillSpec, ProfileSpec
from hpckit.config.spec.fault_tolerance import (
    DeepHealthSpec,
    ElasticSpec,
    HangSpec,
    HealSpec,
    HealthSpec,
    RetrySpec,
)
from hpckit.config.spec.fine_tuning import InitFromSpec, LoraSpec
from hpckit.config.spec.memory import MemorySpec
from hpckit.config.spec.metrics import MetricsSpec, MlflowSpec, PrometheusSpec, WandbSpec
from hpckit.config.spec.model import (
    MODEL_KINDS,
    DecoderSpec,
    ExpertsSpec,
    GptSpec,
    ImageSpec,
    LlamaSpec,
    ModelSpec,
    ResnetSpec,
    VitSpec,
)
from hpckit.config.spec.optim import OptimSpec
from hpckit.config.spec.run import RunSpec
from hpckit.config.spec.training import (
    BatchRampSpec,
    ParallelSpec,
    PrecisionSpec,
    SequenceRampSpec,
    TrainSpec,
)

__all__ = [
    "MODEL_KINDS",
    "AlertKind",
    "AlertsSpec",
    "BatchRampSpec",
    "CanarySpec",
    "CheckpointSpec",
    "ClusterSpec",
    "CommandSpec",
    "ContainerSpec",
    "DataSpec",
    "DebugSpec",
    "DecoderSpec",
    "DeepHealthSpec",
    "DrillSpec",
    "ElasticSpec",
    "EmailSpec",
    "EvalSlurmSpec",
    "EvalSpec",
    "ExpertsSpec",
    "GptSpec",
    "HangSpec",
    "HealSpec",
    "HealthSpec",
    "ImageSpec",
    "ImagesSpec",
    "InitFromSpec",
    "KeepSpec",
    "LaunchSpec",
    "LlamaSpec",
    "LoraSpec",
    "MemorySpec",
    "MetricsSpec",
    "MixtureSourceSpec",
    "MixtureSpec",
    "MixtureStageSpec",
    "MlflowSpec",
    "ModelSpec",
    "OptimSpec",
    "PackSpec",
    "ParallelSpec",
    "PrecisionSpec",
    "ProfileSpec",
    "PrometheusSpec",
    "ResnetSpec",
    "RetrySpec",
    "RunSpec",
    "SequenceRampSpec",
    "SlurmSpec",
    "SuspectsSpec",
    "TrainSpec",
    "VitSpec",
    "WandbSpec",
    "WebhookSpec",
]
