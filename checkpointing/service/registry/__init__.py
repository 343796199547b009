"""Keeps which snapshots each rank of this node has in shared memory and how far each generation has
come, under the service's one lock. Only `checkpointing.service` imports it."""
