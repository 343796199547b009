"""Indexes of other tools beside a shard, which are compared with its own index but not used.

Energon's `<shard>.tar.idx` and DALI's `<shard>.idx` give offsets, but not the CRC of each header,
by which a read detects a stale index. For the CRC the headers must be read, and they contain all
the rest: reading them at the given offsets costs the same as finding them. Differences are
reported, as one of the two is then of another version of the shard.
"""

import errno
import logging
from pathlib import Path

from data.index.shard import dali_index, energon_index
from data.index.shard.shard_index import ShardIndex

_log = logging.getLogger(__name__)


def compare(shard: Path, index: ShardIndex) -> list[str]:
    """Warn of indexes of other tools that do not fit the shard; returns the warnings."""
    warnings: list[str] = []
    for name, difference in (
        (f"{shard.name}.idx", energon_index.difference),
        (f"{shard.name.split('.')[0]}.idx", dali_index.difference),
    ):
        try:
            problem = difference(index, (shard.parent / name).read_bytes())
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                continue
            problem = f"cannot be read ({error.strerror})"
        if problem:
            warnings.append(f"{shard.parent / name} does not fit its shard: {problem}")
            _log.warning("%s; it was made from another version of the shard", warnings[-1])
    return warnings
