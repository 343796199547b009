"""Memory of a rank: activation recompute, peak memory, memory snapshots, out-of-memory errors, and
the fake step that measures a rank without a GPU. Imported by worker, run_loop, metrics and
parallel; fake_step is imported by submit, lazily."""
