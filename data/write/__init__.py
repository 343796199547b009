"""Writing shards: packing a folder or writing sample by sample, with indexes, manifest and pack
report.

This package imports data.index, data.durable_files, data.keyword_options and data.read.dataset.
Only `data` and `hpckit.cli.data` import it.
"""
