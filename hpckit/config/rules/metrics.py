"""Rules for metrics and trackers, as pure functions."""

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
