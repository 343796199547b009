"""The history, progress and state of a run from its records, and explanations of them. It imports
slurm, events, rundir, config, text, system, checkpointing and data."""
