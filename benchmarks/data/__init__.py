"""Benchmarks of the data pipeline, compared with webdataset, LitData and other readers. They import
benchmarks.common."""
