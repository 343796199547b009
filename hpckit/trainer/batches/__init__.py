"""The loaders of the training functions that come with hpckit, and their batches: token windows and
labelled images. This package imports data; the training functions and memory.fake_step import
it."""
