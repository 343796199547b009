"""The index of one shard: its columns, the scan that makes it, the sidecar that stores it, the
tokens of its samples, and the comparison with other tools' indexes (DALI, Energon).

This package imports data.index.tar, data.index.shard_access, data.index.column_container and
data.source.
"""
