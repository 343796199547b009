"""The memory of a rank: activation checkpointing, peak memory, memory snapshots, out-of-memory
errors, and the fake step that measures a rank without a GPU. submit imports fake_step inside a
function."""
