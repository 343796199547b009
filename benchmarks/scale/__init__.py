"""Benchmarks of how the costs of a checkpoint grow with the number of ranks and chunks.
They import benchmarks.common."""
