"""Training functions that hpckit brings along, and what they train on."""

from __future__ import annotations

LANGUAGE_MODEL = "hpckit.training.language_model:main"
"""Trains a decoder of `conf/model/` on bytes or tokens of text."""
BYTES_AND_END = 257
"""Its tokens: bytes, and the end of a document."""
IMAGES = "hpckit.training.images:main"
"""Trains a model of `conf/model/` that sorts images into classes."""
