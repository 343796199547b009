"""Samples of one shard: read from a local file, checked by header or checksum, within the limit of
open descriptors. Imports data.cache and data.index, and no other room of data.read."""
