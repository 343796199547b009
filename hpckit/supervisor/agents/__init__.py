"""The supervisor launches the agents of a submission here, one on each node, and talks to them;
only hpckit.supervisor imports it."""
