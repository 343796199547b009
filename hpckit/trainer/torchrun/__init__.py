"""How the workers of a node are started: the fork server, torchrun with forked or spawned workers,
its rendezvous at the supervisor's store. Started as programs by the agent, without the rest of the
trainer until a worker is forked."""
