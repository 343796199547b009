"""The `hpckit` command: one file per command group."""
