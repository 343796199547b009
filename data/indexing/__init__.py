"""Where each sample of each shard lies: sidecars of shards, and the manifest of a dataset."""
