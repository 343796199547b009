"""The Checkpointer inside others' trainers: `lightning` and `huggingface`, each importing its
framework when it is imported itself, and nothing else in this package importing either."""
