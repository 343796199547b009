"""Making shards: from a folder of files, or sample by sample, with their indexes."""
