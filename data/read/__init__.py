"""The loader: an open dataset, the stream of samples, batches, the policy for bad samples, and
transfer to the device.

This package imports index, order, cache and source.
"""
