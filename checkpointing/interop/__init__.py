"""Imports checkpoints from other formats and exports to them: safetensors, DCP folders, torch.save
files.

Callers use `safetensors`, `dcp` and `torch_save`; importing them does not import torch.
"""
