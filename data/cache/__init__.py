"""The node store: a cache of shards in one folder on a local disk that all ranks, workers and jobs
of a node share.

This package imports data.source, data.index, data.durable_files, data.keyword_options and
data.errors.
"""
