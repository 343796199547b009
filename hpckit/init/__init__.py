"""Generates the first files of a site and a project: a file of `conf/cluster/`, a training
function, sbatch scripts. Imports doctor, slurm, submit, config; cli imports it."""
