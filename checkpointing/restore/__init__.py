"""The restore pipeline of a rank. Its modules, in the order in which they act: resume_source
decides between memory_restore (with peer_replicas) and store_restore, read_broadcast sends what was
read to other ranks, and accepted_checkpoint calls the user's check; partial_load loads parts of any
run's checkpoint. Imports `save` and all that `save` imports, and `store`, and only the
Checkpointer, `checkpointing.load` and `integrations` import it."""
