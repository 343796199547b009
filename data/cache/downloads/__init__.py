"""How one shard gets into the cache: download jobs, verification, stalls, quarantine of damaged
shards, and whether a read waits for a download. Imports data.cache.files, data.cache.space and
data.source."""
