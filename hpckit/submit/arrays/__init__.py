"""Expands sweeps, checks their runs and submits them as one Slurm job array. Only `hpckit.submit`
and `hpckit.examples` import it."""
