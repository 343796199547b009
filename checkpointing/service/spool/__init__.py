"""Copies snapshots with a deadline to the node's own disk, decides when, and recovers them when a
service starts; only the service imports it."""
