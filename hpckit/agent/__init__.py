"""The agent of each node, which starts the workers of a generation, watches them and reports how
they ended. Supervisor and submit import it; it imports config, rundir, events, slurm and exporter,
and never torch."""
