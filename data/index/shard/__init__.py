"""The index of one shard: its columns, making it by a scan, the sidecar file that keeps it, the
tokens of its samples, and other tools' indexes (DALI, Energon) compared with it. Imports
data.index.tar, data.index.shard_access, data.index.column_container and data.source."""
