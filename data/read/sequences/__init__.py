"""Documents of tokens packed into sequences of equal length: token counts by position, the packed
batches, and what a loader delivers of them. Imports data.read.batches and data.order."""
