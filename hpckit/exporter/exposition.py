"""Samples in Prometheus's text format, version 0.0.4, which prometheus_client writes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from hpckit.exporter.metric_names import BY_NAME, METRICS

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True)
class MetricSample:
    """One value of the metric `name`."""

    name: str
    labels: tuple[str, ...]
    """Label values, in the order of the metric's labels."""
    value: float


class SampleCollector(Collector):
    """Gives prometheus_client the samples of one page, grouped by metric in the order of `METRICS`.

    Raises:
        KeyError: the name of a sample is not in `METRICS`.
        ValueError: a sample has more or fewer labels than its metric.
    """

    def __init__(self, samples: Iterable[MetricSample]) -> None:
        self._families: dict[str, MetricFamily] = {}
        for sample in samples:
            self._add(sample)

    def collect(self) -> Iterator[MetricFamily]:
        return (self._families[metric.name] for metric in METRICS if metric.name in self._families)

    def _add(self, sample: MetricSample) -> None:
        metric = BY_NAME[sample.name]
        if metric.name not in self._families:
            name = metric.name.removesuffix("_total")  # prometheus_client appends it to counters
            self._families[metric.name] = MetricFamily(name, metric.help, metric.kind)
        values = map(_as_text, sample.labels)
        labels = dict(zip(metric.labels, values, strict=True))
        self._families[metric.name].add_sample(metric.name, labels, sample.value)


def exposition(samples: Iterable[MetricSample]) -> str:
    """Returns the page of `samples`; raises what `SampleCollector` raises."""
    return generate_latest(SampleCollector(samples)).decode()


def _as_text(label: str) -> str:
    """Replaces bytes that are not text, which names of files may have."""
    return label.encode("utf-8", "replace").decode()
