"""The construction of the trackers that the spec of a run names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import spec_values
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir, run_name
from hpckit.trainer.trackers.tracker_delivery import TrackerDelivery
from hpckit.trainer.trackers.tracker_interface import Tracker

OpenRun = Callable[[str | None], Tracker]

END_S = 8.0
"""Most seconds for which the end of an attempt waits for all trackers together."""


def build_deliveries(spec: RunSpec, run: RunDir, events: EventLog) -> list[TrackerDelivery]:
    """Return a delivery for each tracker. The tracker is imported and opened with the first
    record."""
    found = {"wandb": _wandb(spec, run), "mlflow": _mlflow(spec, run)}
    return [
        TrackerDelivery(name, open_run, run.trackers / f"{name}.json", events)
        for name, open_run in found.items()
        if open_run is not None
    ]


def close_all(
    deliveries: Sequence[TrackerDelivery], is_done: bool, within_s: float = END_S
) -> None:
    """Close all deliveries, and wait at most `within_s` seconds for all of them together."""
    until_s = time.monotonic() + within_s
    for delivery in deliveries:
        delivery.end(is_done)
    for delivery in deliveries:
        delivery.join(until_s)


def missing_packages(spec: RunSpec) -> Iterator[str]:
    """Yield which trackers of the spec are not installed, and how to install them."""
    requested = {
        ("wandb", "wandb"): spec.metrics.wandb.project,
        ("mlflow", "mlflow-skinny"): spec.metrics.mlflow.experiment,
    }
    for (name, package), value in requested.items():
        if value is not None and find_spec(name) is None:
            yield f"metrics.{name}: {name} is not installed: pip install {package}"


def _wandb(spec: RunSpec, run: RunDir) -> OpenRun | None:
    def open_run(known: str | None) -> Tracker:
        from hpckit.trainer.trackers.weights_and_biases import WandbRun

        folder = run.trackers / "wandb"
        return WandbRun(spec.metrics.wandb, run_name(spec), known, folder, spec_values(spec))

    return open_run if spec.metrics.wandb.project is not None else None


def _mlflow(spec: RunSpec, run: RunDir) -> OpenRun | None:
    def open_run(experiment: str, known: str | None) -> Tracker:
        from hpckit.trainer.trackers.mlflow import MlflowRun

        uri = spec.metrics.mlflow.uri or str(run.mlflow)
        return MlflowRun(uri, experiment, run_name(spec), known, spec_values(spec))

    experiment = spec.metrics.mlflow.experiment
    return partial(open_run, experiment) if experiment is not None else None
