"""The dataset manifest and the indexes of shards: building, verifying and opening them, and listing
the shards of a dataset.

This package imports data.source, data.durable_files and data.errors only.
"""
