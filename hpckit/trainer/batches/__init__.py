"""Loaders of hpckit's own training functions, and the batches that they yield: windows of tokens
and labelled images. The training functions and memory.fake_step import this package, which imports
data."""
