"""One agent per node starts the workers of a generation, watches them and reports how they ended;
supervisor and submit import it, it imports config, rundir, events, slurm and exporter, and never
torch."""
