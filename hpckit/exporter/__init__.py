"""What Prometheus is told of a run, by the agent of each node."""
