"""Where shards lie: local files, S3, http(s), pipes and whatever an fsspec driver reaches, with
retries and limits per host. Imports data.errors only, and checkpointing.storage for S3."""
