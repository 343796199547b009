"""Launch of the agents of a submission, one on each node, and the supervisor's messages to them.
Only `hpckit.supervisor` imports it."""
