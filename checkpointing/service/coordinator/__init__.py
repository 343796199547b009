"""Carries out saves: announces or follows them through the store, writes this node's parts, commits
or gives up. Only `checkpointing.service` imports it."""
