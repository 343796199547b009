"""Descriptions of how a run, or one of its generations or attempts, ends."""

from __future__ import annotations

KINDS = {
    "done": "it reached its last step",
    "stopped": "it was stopped by its user",
    "preempted": "the nodes were wanted back",
    "time_limit": "the time of its job was nearly up",
    "infra": "a node or its agent was lost, or too few nodes are healthy",
    "hang": "ranks finished no step, more often than they may be started again",
    "oom": "it needs more memory than there is",
    "crash": "workers failed more often than they may be started again",
    "permanent": "an error that no further attempt can mend",
}
"""The description of each verdict that ends a run."""

INTERRUPTED = {
    "preempted": "preemption",
    "time_limit": "time limit",
    "infra": "lost node or agent",
    "hang": "hanging ranks",
    "oom": "lack of memory",
    "crash": "crash of workers",
    "worker lost": "restart of workers in place",
    "killed": "supervisor ended without a word",
}
"""The name of each kind of interruption after which the run continued."""
