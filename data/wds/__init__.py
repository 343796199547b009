"""Webdataset's pipelines with the order, cache and state of `data`: the dataset, its DataLoader,
and the state of a pass.

This package imports data.read and the packages below it; nothing in data imports it.
"""
