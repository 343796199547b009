"""Tests on a real Slurm of several nodes."""
