"""Heals checkpoints and writes new revisions of manifests. Only `checkpointing.store` and
`hpckit.cli.ckpt` import it."""
