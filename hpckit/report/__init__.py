"""What has happened in a run, from its records: history, progress, state and explanations. Imports
slurm, events, rundir, config, text, system, checkpointing and data; exporter, faults, supervisor,
submit and cli import it."""
