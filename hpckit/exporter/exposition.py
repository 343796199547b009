"""Prometheus's text format, version 0.0.4. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hpckit.exporter.metric_names import BY_NAME, METRICS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class MetricSample:
    """One value of the metric `name`."""

    name: str
    labels: tuple[str, ...]
    """Label values, in the order of the metric's labels."""
    value: float


def exposition(samples: Iterable[MetricSample]) -> str:
    """Returns the page, with each metric's samples together under its HELP and TYPE.

    Raises:
        KeyError: a name that is not in `METRICS`.
        ValueError: more or fewer labels than the metric has.
    """
    by_name: dict[str, list[str]] = {}
    for sample in samples:
        names = BY_NAME[sample.name].labels
        pairs = zip(names, sample.labels, strict=True)
        labels = ",".join(f'{name}="{_escaped_label(value)}"' for name, value in pairs)
        line = f"{sample.name}{{{labels}}} {_number(sample.value)}"
        by_name.setdefault(sample.name, []).append(line)
    lines = []
    for metric in METRICS:
        if metric.name in by_name:
            lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines += by_name[metric.name]
    return "".join(f"{line}\n" for line in lines)


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escaped_label(text: str) -> str:
    """Escapes a label. Bytes that are no text, as file names may have, are replaced."""
    plain = text.encode("utf-8", "replace").decode()
    return _escaped(plain).replace('"', '\\"')
