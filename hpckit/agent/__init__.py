"""The agent of each node, which starts the workers of a generation, watches them and reports how
they ended. It imports config, rundir, events, slurm and exporter, and never torch."""
