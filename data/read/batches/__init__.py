"""Making batches in this process: the plan of a rank's batches, the fetcher that makes them,
prefetching in threads or inline, and opening and prefetching of shards.

This package imports data.read.shards, data.read.sample_stream, data.cache and data.order.
"""
