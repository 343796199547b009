"""The `hpckit` command, one command or command group per file: arguments in, text out. Imported by
nobody but docs and drills. Imports everything below it inside functions, and never torch (except
model_export.merged_adapters, lazily)."""
