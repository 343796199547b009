"""What belongs to Slurm and not to any one run."""
