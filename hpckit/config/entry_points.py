"""The training functions of hpckit, and constants of their data."""

from __future__ import annotations

LANGUAGE_MODEL = "hpckit.training.language_model:main"
"""The training function that trains a decoder of `conf/model/` on bytes or tokens of text."""
BYTES_AND_END = 257
"""The number of tokens when text is read as bytes: all bytes, and the end of a document."""
IMAGES = "hpckit.training.images:main"
"""The training function that trains a model of `conf/model/` that classifies images."""
