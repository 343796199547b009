"""Loaders of hpckit's own training functions, and the batches that they yield: windows of tokens
and labelled images. Imported by the training functions and memory.fake_step. Imports data."""
