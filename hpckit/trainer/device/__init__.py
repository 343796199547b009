"""What a rank's device supports and computes with: capability checks, the attention kernel,
compiled blocks, peak FLOP/s. Imported by run_loop, metrics and parallel."""
