"""Where metrics cannot go is said before a run starts."""

from __future__ import annotations

import pytest

from hpckit.config.rules.metrics_and_alerts import metrics_violations
from hpckit.config.spec_parser import SpecError
from tests.unit.hpckit.specs_and_processes import make_spec


@pytest.mark.parametrize(
    "uri",
    [
        "https://host",
        "http://host:5000/base",
        "databricks",
        "databricks://work",
        "/runs",
        "file:///r",
    ],
)
def test_servers_and_folders_are_taken(uri: str) -> None:
    assert not list(metrics_violations(make_spec({"metrics.mlflow.uri": uri})))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("mlflow.uri", "mlruns", "absolute path, got 'mlruns'"),
        ("mlflow.uri", "postgresql://host/db", "for a database, use the URL of an MLflow server"),
        ("mlflow.uri", "databricksy", "must be"),
        ("wandb.url", "wandb.site", "must be http"),
        ("prometheus.folder", "relative", "must be an absolute path"),
        ("prometheus.port", 0, "must be greater than or equal to 1"),
        ("prometheus.every_s", 0.0, "must be greater than 0"),
        ("wandb.mode", "disabled", "'online' or 'offline'"),
    ],
)
def test_what_cannot_work_is_refused(key: str, value: object, said: str) -> None:
    with pytest.raises(SpecError, match=rf"^metrics\.{key}: .*{said}"):
        make_spec({f"metrics.{key}": value})
