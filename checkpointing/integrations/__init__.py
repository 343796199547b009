"""The Checkpointer inside others' trainers: `lightning`, `huggingface` and `torchtitan`, each of
which imports its framework when it is imported itself; nothing else in this package does."""
