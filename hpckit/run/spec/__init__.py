"""The run's spec: one frozen dataclass per config group, one docstring per key.

The values live in `conf/`; these files say what a key means, its type and its bounds. Nothing here
has a default, so a spec always states everything it was made of. `hpckit.run.check` holds the rules
that span groups, `hpckit.run.parse` turns plain data into a `RunSpec` or a list of violations.
"""

from __future__ import annotations

from hpckit.run.spec.checkpoint import CheckpointSpec, KeepSpec
from hpckit.run.spec.cluster import ClusterSpec, ContainerSpec, LaunchSpec, SlurmSpec
from hpckit.run.spec.data import DataSpec, ImagesSpec, PackSpec
from hpckit.run.spec.debug import CanarySpec, DebugSpec, DrillSpec, ProfileSpec
from hpckit.run.spec.lora import LoraSpec
from hpckit.run.spec.memory import MemorySpec
from hpckit.run.spec.metrics import MetricsSpec, MlflowSpec, PrometheusSpec, WandbSpec
from hpckit.run.spec.model import (
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
from hpckit.run.spec.optim import OptimSpec
from hpckit.run.spec.run import RunSpec
from hpckit.run.spec.start import StartSpec
from hpckit.run.spec.survival import ElasticSpec, HangSpec, HealthSpec, RetrySpec
from hpckit.run.spec.training import ParallelSpec, PrecisionSpec, TrainSpec

__all__ = [
    "MODEL_KINDS",
    "CanarySpec",
    "CheckpointSpec",
    "ClusterSpec",
    "ContainerSpec",
    "DataSpec",
    "DebugSpec",
    "DecoderSpec",
    "DrillSpec",
    "ElasticSpec",
    "ExpertsSpec",
    "GptSpec",
    "HangSpec",
    "HealthSpec",
    "ImageSpec",
    "ImagesSpec",
    "KeepSpec",
    "LaunchSpec",
    "LlamaSpec",
    "LoraSpec",
    "MemorySpec",
    "MetricsSpec",
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
    "SlurmSpec",
    "StartSpec",
    "TrainSpec",
    "VitSpec",
    "WandbSpec",
]
