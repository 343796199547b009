"""Decides which codec a chunk is encoded with, by measured samples and by the time that is left.
Only `checkpointing.codec` imports it."""
