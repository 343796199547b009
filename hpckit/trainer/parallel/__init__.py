"""A model spread over ranks: process group, device mesh, data, tensor, pipeline and expert
parallelism, and collectives of numbers. Imported by run_loop, metrics, optim and the training
functions. Imports models, precision, memory and device."""
