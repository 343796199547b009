"""The parallel model of a run: process group, device mesh, data, tensor, pipeline and expert
parallelism, and collectives on a few numbers. This package imports models, precision, memory and
device."""
