"""Making shards: packing a folder or writing sample by sample, with indexes, manifest and pack
report. Imports data.index, data.durable_files and data.read.dataset, and nothing in data imports
it."""
