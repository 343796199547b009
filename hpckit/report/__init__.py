"""What a run has been through, from its own records: history, progress, state, why. Imports slurm,
events, rundir, config, text, system, checkpointing and data; exporter, faults, supervisor, submit
and cli import it."""
