"""Writes what a site and a project begin with: a file of `conf/cluster/` from what Slurm says, a
training function, and scripts for sbatch."""
