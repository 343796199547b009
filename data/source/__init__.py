"""The sources of shards: local files, S3, http(s), pipes and the drivers of fsspec, with retries
and limits per host.

This package imports data.errors only (later checkpointing.storage for S3); all of data may import
it.
"""
