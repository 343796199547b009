"""Step metrics, which are reduced over ranks and written to events, trackers and TensorBoard files
beside training. This package is imported by the run loop, and imports timing, memory, device,
trackers and parallel.collectives."""
