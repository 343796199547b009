"""Text that is not UTF-8, as words of a command line and names of files may be."""

from __future__ import annotations


def is_undecodable(text: str) -> bool:
    """Returns whether the text has bytes that are not UTF-8 (PEP 383), or else no code points of
    UTF-8."""
    return any("\ud800" <= sign <= "\udfff" for sign in text)
