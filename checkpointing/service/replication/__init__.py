"""Keeps replicas of snapshots in the memory of another node and gives them back: ring, sender and
server. Only `checkpointing.service` and `checkpointing.restore` import it."""
