"""The node's store of shards: one folder on a local disk that all ranks, workers and jobs of a node
share. Imports data.source and data.errors, and data.read and data.wds import it by node_store."""
