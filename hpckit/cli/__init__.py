"""The `hpckit` command: one command or command group per file. Only docs and drills import it. It
imports everything below it inside functions, and never torch (except model_export.merged_adapters,
lazily)."""
