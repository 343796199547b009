"""Runs the checkpoint service, one process per node and run, which makes staged snapshots durable
and outlives the trainers that staged them; without torch; the checkpointer talks to it by
`service.client` alone."""
