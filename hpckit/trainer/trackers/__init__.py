"""Weights & Biases and MLflow: records delivered by a thread that no step waits for. Imported by
metrics, run_loop and device.device_capability; has no torch."""
