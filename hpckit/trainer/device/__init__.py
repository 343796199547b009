"""What a rank's device can do and what it computes with: capability checks, the attention kernel,
compiled blocks, peak FLOP/s. Imported by run_loop, metrics and parallel."""
