"""The number of streams and the window of a dataset where none are given: a function of the dataset
alone, so that the order is the same on any number of ranks.

A group of rows of a table is unpacked as a whole, and those that are read at a time, `streams` x
`window` of them over all ranks, should fit into what one process keeps: it would unpack a group
again for each few rows otherwise.
"""

from typing import NamedTuple

from data.index.manifest import Manifest
from data.index.table_files.table_manifest import TableManifest

STREAMS, WINDOW = 48, 8
LEAST_STREAMS = 8
"""Of tables, so that the ranks of a node read different groups."""
LIVE_BYTES = 512 << 20
"""What the groups that are read at a time have together by the footers of their files; Parquet
counts encoded values, and their rows in memory have more. Half of what a process keeps."""
WINDOW_BYTES = LIVE_BYTES // LEAST_STREAMS


class StreamSizes(NamedTuple):
    streams: int
    window: int


def stream_sizes(manifest: Manifest, streams: int | None, window: int | None) -> StreamSizes:
    """Return the given numbers, and those of this dataset in the place of None."""
    most_streams, most_window = STREAMS, WINDOW
    if isinstance(manifest, TableManifest) and len(manifest):
        size = max(1, int(manifest.bytes.sum()) // len(manifest))
        most_window = min(WINDOW, max(1, WINDOW_BYTES // size))
        live = max(1, most_window if window is None else window) * size
        most_streams = min(STREAMS, max(LEAST_STREAMS, LIVE_BYTES // live))
    return StreamSizes(
        most_streams if streams is None else streams, most_window if window is None else window
    )
