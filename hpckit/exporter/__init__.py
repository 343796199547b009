"""The agent of each node exports metrics of its run to Prometheus here, by an HTTP endpoint or the
textfile collector; only hpckit.agent imports it."""
