"""Rules for the services that metrics and alerts are sent to, as pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpckit.config.spec import RunSpec

_URI = re.compile(r"https?://[^/]|databricks(://|$)|/|file:///")


def metrics_violations(spec: RunSpec) -> Iterator[str]:
    """Yields all problems of `spec.metrics`, one line each, the key first."""
    uri, url = spec.metrics.mlflow.uri, spec.metrics.wandb.url
    if uri is not None and not _URI.match(uri):
        yield (
            "metrics.mlflow.uri: must be http(s)://server, databricks, or a folder as an absolute "
            f"path, got {uri!r}; for a database, use the URL of an MLflow server"
        )
    if url is not None and not url.startswith(("http://", "https://")):
        yield f"metrics.wandb.url: must be http(s)://server, got {url!r}"


def alert_violations(spec: RunSpec) -> Iterator[str]:
    """Yields all problems of `spec.alerts`, one line each, the key first."""
    alerts = spec.alerts
    hooks = {"slack": alerts.slack, "mattermost": alerts.mattermost, "webhook": alerts.webhook}
    for name, hook in hooks.items():
        if hook.url_env is not None and hook.url_file is not None:
            yield (
                f"alerts.{name}.url_file: the URL is also in the variable "
                f"alerts.{name}.url_env={hook.url_env}; set one of them to null"
            )
