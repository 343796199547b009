"""The interfaces between supervisor, agents and ranks: the heartbeat table in shared memory,
environment variables, events of a rank outside of its training loop, names at the rendezvous and
kinds of memory. This package imports hpckit.rundir, hpckit.events and the packages below them, and
no torch."""
