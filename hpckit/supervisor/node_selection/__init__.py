"""Choice of the nodes of the next generation: how long to wait for nodes, which ones are unhealthy
or excluded, and what follows when there are too few. Only `hpckit.supervisor` imports it."""
