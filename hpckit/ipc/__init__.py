"""The interfaces between supervisor, agents and ranks: the heartbeat table in shared memory,
environment variables, names at the rendezvous and kinds of memory. This package imports
hpckit.rundir and the packages below it, and no torch."""
