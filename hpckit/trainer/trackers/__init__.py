"""Weights & Biases and MLflow, to which a thread delivers the records, so that no step waits for
them. This package is imported by metrics, run_records and device.device_capability, and does not
import torch."""
