"""Opens a store, and lists, reads and pins its checkpoints, without importing torch;
the service, restores, interop and the CLI import it."""
