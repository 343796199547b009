"""Indexes of other tools beside a shard: compared, not believed.

Energon's `<shard>.tar.idx` and DALI's `<shard>.idx` give places, but not the CRC of each header,
by which a read tells a stale index. To know that, the headers must be read, and they say all the
rest: so reading them at the places given costs what finding them does. What differs is said, as
one of the two is then of another version of the shard.
"""

import logging
from pathlib import Path

from data.index.shard import dali_index, energon_index
from data.index.shard.shard_index import ShardIndex

_log = logging.getLogger(__name__)


def compare(shard: Path, index: ShardIndex) -> list[str]:
    """Warn of indexes of other tools that do not fit the shard; returns what was said."""
    said: list[str] = []
    for name, difference in (
        (f"{shard.name}.idx", energon_index.difference),
        (f"{shard.name.split('.')[0]}.idx", dali_index.difference),
    ):
        try:
            problem = difference(index, (shard.parent / name).read_bytes())
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem:
            said.append(f"{shard.parent / name} does not fit its shard: {problem}")
            _log.warning("%s; it was made of another version of it", said[-1])
    return said
