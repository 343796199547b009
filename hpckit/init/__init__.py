"""Writes what a site and a project begin with: a file of `conf/cluster/`, a training function,
sbatch scripts. Imports doctor, slurm, submit, config; cli imports it."""
