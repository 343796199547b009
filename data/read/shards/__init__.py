"""The samples of one shard: read from a local file, checked by header or checksum, within the limit
of open descriptors.

This package imports data.cache and data.index, and nothing else of data.read.
"""
