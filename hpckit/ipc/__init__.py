"""What supervisor, agents and ranks hand one another on a node (heartbeat table in shared memory,
environment variables, names at the rendezvous, kinds of memory). Imports hpckit.rundir and below,
no torch; supervisor, agent, trainer and exporter import it."""
