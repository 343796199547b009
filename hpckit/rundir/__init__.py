"""The run directory: paths, lock, supervisor's process, sample ledger, code snapshot. Imports
hpckit.config and hpckit.system."""
