"""Sweeps are multiplied out, checked and submitted here as one Slurm job array; only hpckit.submit
and examples import it."""
