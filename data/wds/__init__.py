"""Webdataset's pipelines over our order, cache and state: the dataset, its DataLoader, and the
state of a pass. Imports data.read and below, and nothing in data imports it."""
