"""The loaders of the training functions that come with hpckit, and their batches: token windows and
labelled images; and the source of batches that the run loop makes of any iterable. This package
imports data and checkpointing."""
