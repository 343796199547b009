"""The nodes of a cluster, with their first process, network and cgroups. Only slurm.devcluster
imports this package."""
