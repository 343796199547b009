"""The size of a cache: which shards are evicted, when each is used next, and the reservation of
disk space for a download.

This package imports data.cache.files.
"""
