"""Documents of tokens packed into sequences of equal length: token counts by position, packed
batches, and the sequences that a loader delivers.

This package imports data.read.batches and data.order.
"""
