"""How the workers of a node are started: the fork server, torchrun with forked or spawned workers,
and its rendezvous at the supervisor's store. The agent starts these modules as programs; the rest
of the trainer is not imported until a worker is forked."""
