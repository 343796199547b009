"""Where each sample of each shard lies: building, verifying and opening a dataset's manifest, and
listing its shards. Imports data.source, data.durable_files and data.errors only, and order, cache,
read, wds and write may import it."""
