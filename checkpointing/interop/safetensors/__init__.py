"""Reads and writes Hugging Face's safetensors files and their index, without torch."""

from checkpointing.interop.safetensors.model_files import export_safetensors, import_safetensors

__all__ = ["export_safetensors", "import_safetensors"]
