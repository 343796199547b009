"""Keeps replicas of snapshots in the memory of another node and gives them back: ring, sender and
server; only the service and messages import it."""
