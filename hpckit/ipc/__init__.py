"""Communication of supervisor, agents and ranks on a node (heartbeat table in shared memory,
environment variables, names at the rendezvous, kinds of memory). Imports hpckit.rundir and the
packages below it, no torch; supervisor, agent, trainer and exporter import it."""
