"""Descriptions of how a run, or one of its generations or attempts, ends."""

from __future__ import annotations

KINDS = {
    "done": "it reached its last step",
    "stopped": "it was stopped by its user",
    "preempted": "it was preempted: its nodes were needed for another job",
    "time_limit": "its job was about to reach its time limit",
    "evicted": "it left to replace a node that slowed all others down",
    "infra": "a node or its agent was lost, or too few nodes are healthy",
    "hang": "ranks stopped making progress, and the retry budget is used up",
    "oom": "it needs more memory than is available",
    "crash": "workers failed, and the retry budget is used up",
    "permanent": "it failed with an error that another attempt cannot fix",
}
"""The description of each verdict that ends a run."""

INTERRUPTED = {
    "preempted": "preemption",
    "time_limit": "time limit",
    "evicted": "replaced slow node",
    "infra": "lost node or agent",
    "hang": "hanging ranks",
    "oom": "out of memory",
    "crash": "crash of workers",
    "worker lost": "restart of workers in place",
    "killed": "supervisor ended without a verdict",
}
"""The name of each kind of interruption after which the run continued."""
