"""Copies snapshots with a deadline to the node's own disk, decides when, and recovers them when a
service starts. Only `checkpointing.service` imports it."""
