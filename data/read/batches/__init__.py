"""One batch after another in this process: which samples a rank's batch is made of, making it,
prefetching it in threads or inline, and opening and fetching its shards ahead. Imports
data.read.shards, data.read.sample_stream, data.cache and data.order."""
