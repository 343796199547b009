"""Integrations of the Checkpointer into other trainers: `lightning`, `huggingface` and
`torchtitan`. Each imports its framework when it is imported; nothing else in this package does."""
