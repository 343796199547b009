"""Carries out saves: announces or follows them through the store, writes this node's parts, commits
or gives up; only the service imports it."""
