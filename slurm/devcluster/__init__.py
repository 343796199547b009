"""A real Slurm of several nodes on one machine, by the standard library alone."""
