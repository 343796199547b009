"""Opens a store, and lists, reads and pins its checkpoints, without importing torch."""
