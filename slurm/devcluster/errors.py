"""What can go wrong with a cluster."""

from __future__ import annotations


class DevclusterError(RuntimeError):
    """The cluster did not start, is not there, or cannot do what it was told."""


class MissingToolError(DevclusterError):
    """A program is not installed; the text says which Debian packages to install."""
