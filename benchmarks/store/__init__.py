"""Benchmarks of the checkpoint store: bytes, requests, speed, codecs and clients of S3. They import
benchmarks.common."""
