"""Keeps objects on any file system that fsspec has a driver for, each call under a deadline. Only
`checkpointing.storage` imports it."""
