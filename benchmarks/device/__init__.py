"""Benchmarks of a state on a GPU, which `benchmarks/gpu.sh` runs with the commands of hpckit that
use one. They import benchmarks.checkpoint and benchmarks.common."""
