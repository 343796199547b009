"""The `hpckit` command: one command or command group per file. Only docs and drills import it. It
imports everything below it inside functions, and only model_export.merged_adapters imports
torch."""
