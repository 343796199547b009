"""The parallel model of a run: process group, device mesh, data, tensor, pipeline and expert
parallelism, and collectives on a few numbers. This package is imported by the run loop, metrics,
optim and the training functions, and imports models, precision, memory and device."""
