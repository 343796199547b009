"""How large a cache may become: which shards are evicted, when each is used next, and reserving
disk space for a download. Imports data.cache.files."""
