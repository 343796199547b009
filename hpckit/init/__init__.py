"""Generates the first files of a site and a project: a file of `conf/cluster/`, a training
function, sbatch scripts. It imports doctor, slurm, submit and config. Only `hpckit.cli` imports
it."""
