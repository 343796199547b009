"""The folder of a cluster: its paths, Slurm's configuration and the logs. Only slurm.devcluster
imports this package."""
