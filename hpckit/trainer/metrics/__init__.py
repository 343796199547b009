"""Step metrics, which are reduced over ranks and written to events, trackers and TensorBoard files
beside training. This package imports timing, memory, device, trackers and parallel.collectives."""
