"""Holds what may be done with a store and its checkpoints: open, list, read, pin; without torch;
the service, restores, interop and the CLI import it."""
