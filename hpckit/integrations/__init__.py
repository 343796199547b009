"""Integrations of `hpckit.client` into other trainers: `huggingface`, `lightning` and `torchtitan`.
Each imports its framework when it is imported; nothing else in hpckit imports them."""
