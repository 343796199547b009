"""Compressed files, which are unpacked into the folder of a cache, and the files there.

This package imports data.index and what is below it; data.cache evicts the files.
"""
