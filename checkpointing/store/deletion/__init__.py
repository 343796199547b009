"""Removes checkpoints, manifests and packs, in two phases: marked for deletion, then deleted
(prune, sweep, compaction)."""
