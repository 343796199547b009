"""A model spread over ranks: process group, device mesh, data, tensor, pipeline and expert
parallelism, and collectives on numbers. It is imported by run_loop, metrics, optim and the training
functions, and imports models, precision, memory and device."""
