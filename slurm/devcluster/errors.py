"""The errors of a cluster."""

from __future__ import annotations


class DevclusterError(RuntimeError):
    """The cluster did not start, does not exist, or cannot do what was requested."""


class MissingToolError(DevclusterError):
    """A program is not installed; the text says which Debian packages to install."""
