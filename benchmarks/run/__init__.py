"""Benchmarks of a run: its submission, its steps, and its recovery from faults on a Slurm on this
machine. They import benchmarks.common."""
