"""Heals checkpoints and writes new revisions of manifests; the CLI imports it."""
