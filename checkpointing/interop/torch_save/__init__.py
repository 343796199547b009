"""Reads and writes files of `torch.save`; their pickles are read as data and never unpickled.
Callers use `file_import`, which does without torch, and `file_export`."""
