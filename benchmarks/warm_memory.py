"""Memory that the machine really has, for every arm alike."""

from __future__ import annotations

import numpy as np


def touch(nbytes: int) -> None:
    """Have the machine's memory behind that many free bytes.

    A virtual machine may have to fetch from its host what was free for some seconds, page by page
    at 1 to 2 s per GiB. Without this it is the files removed last that make an arm fast. For every
    arm that takes memory or writes into the page cache, just before its time begins.
    """
    np.ones(nbytes, np.uint8)
