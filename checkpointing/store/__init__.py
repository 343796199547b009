"""The checkpoint store: what may be done with the objects that checkpointing.format describes."""
