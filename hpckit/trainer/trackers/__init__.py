"""Weights & Biases and MLflow: a thread delivers the records, so that no step waits for them.
Imported by metrics, run_loop and device.device_capability; has no torch."""
