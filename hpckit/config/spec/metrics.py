"""Who is told a run's metrics, beside its own files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Folder, Line, Positive, Text


@dataclass(frozen=True, config=GROUP)
class WandbSpec:
    """Weights & Biases, by rank 0; the key comes from WANDB_API_KEY or `wandb login`."""

    project: Line | None
    """Project that the run appears in; null: it is not told."""
    entity: Line | None
    """User or team; null: the key's own."""
    url: Text | None
    """Of a server of your own; null: as `wandb` itself is set up."""
    mode: Literal["online", "offline"]
    """offline: into `trackers/wandb` of the run directory, for `wandb sync`; online: the same where
    the server cannot be reached, or there is no key."""


@dataclass(frozen=True, config=GROUP)
class MlflowSpec:
    """MLflow, by rank 0; credentials come from MLflow's own variables."""

    experiment: Line | None
    """Experiment that the run appears in; null: it is not told."""
    uri: Text | None
    """http(s)://server, `databricks`, or a folder as an absolute path; null: `mlflow` in the run
    directory."""


@dataclass(frozen=True, config=GROUP)
class PrometheusSpec:
    """Prometheus, by the agent of each node."""

    folder: Folder | None
    """Folder on each node that node_exporter's textfile collector reads; null: no file."""
    port: Annotated[int, Field(ge=1, le=65535)] | None
    """Port to answer GET /metrics at; null: none."""
    address: Line
    """Address to answer at. Whoever reaches it may read the metrics."""
    every_s: Positive
    """Seconds between two versions of the file."""


@dataclass(frozen=True, config=GROUP)
class MetricsSpec:
    """Who is told metrics (`conf/metrics/`); the run goes on without whoever is not there."""

    wandb: WandbSpec
    """Weights & Biases."""
    mlflow: MlflowSpec
    """MLflow."""
    prometheus: PrometheusSpec
    """Prometheus."""
