"""Where shards lie: local files, S3, http(s), and whatever an fsspec driver reaches."""
