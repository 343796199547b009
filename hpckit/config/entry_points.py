"""Training functions of hpckit, and their data."""

from __future__ import annotations

LANGUAGE_MODEL = "hpckit.training.language_model:main"
"""Trains a decoder of `conf/model/` on bytes or tokens of text."""
BYTES_AND_END = 257
"""Number of its tokens for bytes: all bytes, and the end of a document."""
IMAGES = "hpckit.training.images:main"
"""Trains a model of `conf/model/` that classifies images."""
