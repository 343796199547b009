"""The restore pipeline of a rank. Its modules, in the order in which they act: restore_pipeline
makes attempts until the user's check accepts one; in each, resume_source asks snapshot_choice for a
snapshot in memory and loads it with memory_restore and peer_replicas, or else has store_restore
read a checkpoint, and read_broadcast sends what was read to other ranks. partial_load loads parts
of any run's checkpoint. Imports `save` and all that `save` imports, and `store`. Only
`checkpointing` and `checkpointing.integrations` import it."""
