"""Trackers that receive the metrics of a run, beside its own files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Folder, Line, Positive, Text


@dataclass(frozen=True, config=GROUP)
class WandbSpec:
    """Weights & Biases, by rank 0; the key comes from WANDB_API_KEY or `wandb login`."""

    project: Line | None
    """Project of the run; null: W&B is off."""
    entity: Line | None
    """User or team; null: the default of the key."""
    url: Text | None
    """URL of a self-hosted server; null: as `wandb` is configured."""
    mode: Literal["online", "offline"]
    """offline: write files to `trackers/wandb` of the run directory, for `wandb sync`; online:
    send, or do as offline if the server is unreachable or there is no key."""


@dataclass(frozen=True, config=GROUP)
class MlflowSpec:
    """MLflow, by rank 0; credentials come from MLflow's own variables."""

    experiment: Line | None
    """Experiment of the run; null: MLflow is off."""
    uri: Text | None
    """http(s)://server, `databricks`, or an absolute path of a folder; null: `mlflow` in the run
    directory."""


@dataclass(frozen=True, config=GROUP)
class PrometheusSpec:
    """Prometheus, by the agent of each node."""

    folder: Folder | None
    """Folder on each node for node_exporter's textfile collector; null: no file."""
    port: Annotated[int, Field(ge=1, le=65535)] | None
    """Port that serves GET /metrics; null: none."""
    address: Line
    """Address of that port. Everyone who can connect to it can read the metrics."""
    every_s: Positive
    """Seconds between two updates of the file."""


@dataclass(frozen=True, config=GROUP)
class MetricsSpec:
    """Trackers for metrics (`conf/metrics/`). A run continues if one is not available."""

    wandb: WandbSpec
    """Weights & Biases."""
    mlflow: MlflowSpec
    """MLflow."""
    prometheus: PrometheusSpec
    """Prometheus."""
