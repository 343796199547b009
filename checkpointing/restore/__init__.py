"""The restore pipeline of a rank, in the order in which it happens: resume_source decides between
memory_restore (with peer_replicas) and store_restore, read_broadcast passes on what was read,
accepted_checkpoint asks the user's check; partial_load loads parts of any run's checkpoint. Imports
`save` and all that `save` imports, and `store`, and only the Checkpointer, `checkpointing.load` and
`integrations` import it."""
