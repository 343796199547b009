"""Step metrics, which are reduced over ranks and written to events, trackers and TensorBoard files
beside training. Imported by run_loop. Imports timing, memory, device, trackers and
parallel.collectives."""
