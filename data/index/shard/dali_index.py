"""Comparison of a shard's index with that of NVIDIA DALI's `wds2idx`, `<shard>.idx`.

It is text, of version v1.2 (or v1.1, without names): a line "v1.2 <number of samples>", then a line
for each sample with "<extension> <offset of the data> <size> <name>" of each member, separated by
spaces. Names may contain spaces, so a line is searched for what begins like a member.

It is not used instead of the headers: they must be read for their CRC anyway, and contain all of
it.
"""

import re

from data.index.shard.shard_index import ShardIndex

_MEMBER = re.compile(rb"(?:^| )(\S*) (\d+) (\d+)(?= |$)")
_HEAD = re.compile(rb"v1\.[12] (\d+)$")


def difference(index: ShardIndex, content: bytes) -> str | None:
    """Return how the content of an `.idx` differs from a shard's own index, None if it does not.

    Members that DALI keeps and webdataset does not (of hidden files) are a difference too.
    """
    lines = content.split(b"\n")
    head = _HEAD.match(lines[0].strip())
    if head is None:
        return "is not an index of version v1.1 or v1.2"
    samples = [line for line in lines[1:] if line]
    if int(head[1]) != len(samples) or len(samples) != len(index):
        return f"lists {len(samples)} samples, but there are {len(index)}"
    for i, line in enumerate(samples):
        listed = {(int(offset), int(size)) for _, offset, size in _MEMBER.findall(line)}
        if not {(member.offset, member.size) for member in index.members(i)} <= listed:
            return f"sample {i} moved"
    return None
