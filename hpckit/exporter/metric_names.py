"""The exported metrics, with Prometheus names and base units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One exported metric."""

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str


_RUN = ("run",)
_WORKER = ("run", "node", "local_rank")
METRICS = (
    Metric("hpckit_step", "gauge", _RUN, "Last step that was recorded."),
    Metric("hpckit_steps", "gauge", _RUN, "Steps that the run is configured for."),
    Metric(
        *("hpckit_record_timestamp_seconds", "gauge", _RUN),
        "When the newest record of a step was written, in seconds since the epoch.",
    ),
    Metric("hpckit_loss", "gauge", _RUN, "Loss of the newest record."),
    Metric("hpckit_step_seconds", "gauge", _RUN, "Mean of a step since the record before."),
    Metric(
        "hpckit_data_wait_seconds", "gauge", _RUN, "Part of the step time spent waiting for data."
    ),
    Metric(
        *("hpckit_checkpoint_stall_seconds", "gauge", _RUN),
        "Part of the step time spent waiting for a save to be staged.",
    ),
    Metric("hpckit_tokens_per_second", "gauge", _RUN, "Over all ranks."),
    Metric("hpckit_samples_per_second", "gauge", _RUN, "Over all ranks, of models without tokens."),
    Metric("hpckit_mfu_ratio", "gauge", _RUN, "Model FLOPs utilisation, 0 to 1."),
    Metric(
        *("hpckit_straggler_loss_ratio", "gauge", _RUN),
        "Share of a step that would be saved without the slow nodes; 0 without any.",
    ),
    Metric(
        *("hpckit_rank_spread_loss_ratio", "gauge", _RUN),
        "Share of a step that would be saved if equal ranks were equally fast, with noise.",
    ),
    Metric(
        *("hpckit_straggler_excess_ratio", "gauge", ("run", "host", "rank", "phase")),
        "How much longer the slowest rank of a slow node works than its peers, and in which phase.",
    ),
    Metric("hpckit_checkpoint_step", "gauge", _RUN, "Step of the newest durable checkpoint."),
    Metric(
        *("hpckit_checkpoint_lag_steps", "gauge", _RUN),
        "Steps since the newest durable checkpoint.",
    ),
    Metric(
        *("hpckit_checkpoint_lag_seconds", "gauge", _RUN),
        "Since a checkpoint became durable, or training began.",
    ),
    Metric("hpckit_checkpoint_bytes", "gauge", _RUN, "Size of the newest durable checkpoint."),
    Metric(
        *("hpckit_checkpoint_new_bytes", "gauge", _RUN),
        "Bytes of it that had to be written; the rest was already in the store.",
    ),
    Metric("hpckit_checkpoint_failures_total", "counter", _RUN, "Saves that failed."),
    Metric(
        *("hpckit_restarts_total", "counter", ("run", "kind")),
        "Interruptions after which the run continued, by kind.",
    ),
    Metric("hpckit_generation", "gauge", _RUN, "Number of the present generation."),
    Metric("hpckit_nodes", "gauge", _RUN, "Nodes of that generation."),
    Metric("hpckit_ranks", "gauge", _RUN, "Ranks that train."),
    Metric(
        *("hpckit_tracker_undelivered_total", "counter", ("run", "tracker")),
        "Records that were not delivered to W&B or MLflow.",
    ),
    Metric(
        *("hpckit_degradations_total", "counter", ("run", "subject")),
        "How often the run reported that it is degraded, by what is degraded.",
    ),
    Metric("hpckit_worker_step", "gauge", _WORKER, "Steps that this worker has finished."),
    Metric(
        *("hpckit_worker_heartbeat_age_seconds", "gauge", _WORKER),
        "Since the last heartbeat of this worker.",
    ),
    Metric(
        *("hpckit_worker_gpu_memory_peak_bytes", "gauge", _WORKER),
        "Peak memory of torch's tensors on its GPU between the newest two records.",
    ),
    Metric(
        *("hpckit_worker_host_memory_peak_bytes", "gauge", _WORKER),
        "Peak resident memory, if it trains on the CPU.",
    ),
)
"""All metrics in the order of output. Those with only the label `run` are exported by one node."""
BY_NAME = {metric.name: metric for metric in METRICS}
