"""Weights & Biases and MLflow, to which a thread delivers the records, so that no step waits for
them. This package does not import torch. Only `hpckit.trainer` imports it."""
