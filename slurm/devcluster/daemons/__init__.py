"""Processes of a cluster: how they are started and recorded, and the daemons that exist once. Only
slurm.devcluster imports this package."""
