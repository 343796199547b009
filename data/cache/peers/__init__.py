"""The caches of the nodes of one job: each shard is fetched once from its source, and the nodes get
it from each other.

For each shard, one node is its tracker: it knows which nodes have the shard or fetch it, and tells
a node that wants it from which of them to get it, or to fetch it from the source. `cache_peers`
connects the nodes, `shard_server` answers them, `peer_client` and `peer_transfer` ask;
`shard_holders` and `node_ranking` are the pure decisions. This package imports data.cache.files,
data.cache.space, checkpointing.authenticated_channel and checkpointing.channel_listener.
"""
