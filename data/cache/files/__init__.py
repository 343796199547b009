"""The files of a cache folder: their names and permission marks, records beside them, kernel locks,
file handles, the type of the file system, disk failures, and the quarantine of damaged shards.

This package imports data.durable_files, data.source (address, protocol, file) and
data.cache.cache_metrics, and nothing else of data.cache.
"""
