"""Downloads of shards into the cache: download jobs, verification, stalls, and the decision whether
a read waits for a download.

This package imports data.cache.files, data.cache.space and data.source.
"""
