"""Batches made by reader processes and handed over, like their errors, through shared memory.

This package imports data.read.batches. Only `data.read` imports it, once a loader has reader
processes.
"""

from typing import Literal, TypeAlias

StartMethod: TypeAlias = Literal["spawn", "fork"]
