"""Checkpoints from and to others' formats: safetensors, DCP folders, torch.save files.

`safetensors`, `dcp` and `torch_file` are what callers use; importing them imports no torch.
"""
