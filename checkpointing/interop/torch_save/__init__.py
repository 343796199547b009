"""Reads and writes files of `torch.save`; their pickles are read as data and never unpickled.
Callers use `torch_file`."""
