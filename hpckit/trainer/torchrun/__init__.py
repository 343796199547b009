"""The start of the workers of a node: the fork server, torchrun with forked or spawned workers, and
its rendezvous at the supervisor's store. The agent starts these modules as programs; they import
the rest of the trainer only to fork workers."""
