"""The node's store of shards: one folder on a local disk, shared by all ranks, workers and jobs."""
