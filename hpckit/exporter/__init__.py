"""Exports metrics of a run to Prometheus from the agent of each node, by an HTTP endpoint or the
textfile collector. Only `hpckit.agent` imports it."""
