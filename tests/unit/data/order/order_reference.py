"""data/ORDER.md as plain Python, one position at a time: slow, and made of nothing of `data`."""

from collections.abc import Callable, Sequence

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


def derive(key: int, number: int) -> int:
    return mix(key + (number + 1) * GOLDEN & WORD)


def root(seed: int, purpose: int) -> int:
    return derive(derive(seed, 0), purpose)


def permute(x: int, n: int, key: int) -> int:
    bits = (n - 1).bit_length() // 2
    tops = -(-n // 2**bits)
    while True:
        top, low = divmod(x, 2**bits)
        for r in range(24 if n <= 1024 else 8):
            k = key + (r + 1) * GOLDEN & WORD
            if r % 2 == 0:
                low ^= mix(top ^ k) % 2**bits
            else:
                top = (top + ((mix(low ^ k) >> 32) * tops >> 32)) % tops
        x = top * 2**bits + low
        if x < n:
            return x


def epoch_order(
    counts: Sequence[int], seed: int, streams: int, window: int, epoch: int, remix: int = 0
) -> list[tuple[int, int]]:
    """The (shard, sample) of each position of one epoch."""
    live = [shard for shard, count in enumerate(counts) if count]
    key = derive(root(seed, 0), epoch // remix if remix else 0)
    places = [live[permute(i, len(live), key)] for i in range(len(live))]
    line = [(shard, sample) for shard in places for sample in range(counts[shard])]
    each, longer = divmod(len(line), streams)
    lines: list[list[tuple[int, int]]] = []
    for v in range(streams):
        begin, end = (u * each + min(u, longer) for u in (v, v + 1))
        key = derive(derive(root(seed, 1), epoch), v)
        lines.append(_stream(line[begin:end], window, key))
    key = derive(root(seed, 3), epoch)
    turns = [permute(t, longer, key) for t in range(longer)]
    turns += [longer + permute(t, streams - longer, key) for t in range(streams - longer)]
    return [lines[turns[q % streams]][q // streams] for q in range(len(line))]


def _stream(part: list[tuple[int, int]], window: int, key: int) -> list[tuple[int, int]]:
    shards = list(dict.fromkeys(shard for shard, _ in part))
    pieces = [[sample for sample in part if sample[0] == shard] for shard in shards]
    n = len(pieces)
    placed = [pieces[permute(i, n, derive(key, 0))] for i in range(n)]
    windows = -(-n // window)
    out: list[tuple[int, int]] = []
    for j in range(windows):
        held = [s for piece in placed[j * n // windows : (j + 1) * n // windows] for s in piece]
        out += [held[permute(i, len(held), derive(key, j + 1))] for i in range(len(held))]
    return out


def mixture(
    parts: Sequence[int],
    seed: int,
    block: int,
    blocks: int,
    begin: int = 0,
    order: str = "mix-2",
) -> list[int]:
    """The dataset of each position of the first blocks of the segment from position `begin` on."""
    out: list[int] = []
    for b in range(blocks):
        before, after = (_apportion(t * block, parts) for t in (b, b + 1))
        laid = [d for d in range(len(parts)) for _ in range(after[d] - before[d])]
        position = begin + b * block
        if order == "mix-1":
            key = derive(root(seed, 2), position)
            out += [laid[permute(i, block, key)] for i in range(block)]
            continue
        key = derive(root(seed, 2), position - b % 64 * block)
        high, low = divmod(derive(root(seed, 4), position), 2**32)
        x, y = high * block >> 32, low * block >> 32
        out += [laid[(permute((i + x) % block, block, key) + y) % block] for i in range(block)]
    return out


def _apportion(total: int, parts: Sequence[int]) -> list[int]:
    found = [total * part // 10**9 for part in parts]
    by_rest = sorted(range(len(parts)), key=lambda d: (-(total * parts[d] % 10**9), d))
    for d in by_rest[: total - sum(found)]:
        found[d] += 1
    return found


def packs(
    positions: Sequence[int], tokens: Sequence[int], stream: Callable[[int], int], room: int
) -> list[list[tuple[int, int, int]]]:
    """The packs of one block, long documents split: lists of (position, first token, tokens)."""
    pieces = [
        (p, at, min(room, t - at))
        for p, t in zip(positions, tokens, strict=True)
        for at in range(0, t, room)
    ]
    placed: list[tuple[int, int, list[int]]] = []
    for v in sorted({stream(p) for p, _, _ in pieces}):
        mine = [i for i, piece in enumerate(pieces) if stream(piece[0]) == v]
        bins: list[list[int]] = []
        for i in sorted(mine, key=lambda i: (-pieces[i][2], i)):
            free = [room - sum(pieces[j][2] for j in held) for held in bins]
            fits = [(left, b) for b, left in enumerate(free) if left >= pieces[i][2]]
            if fits:
                bins[min(fits)[1]].append(i)
            else:
                bins.append([i])
        bins.sort(key=lambda held: held[0])
        n = len(bins)
        placed += [((2 * k + 1) * 2**32 // (2 * n), v, sorted(b)) for k, b in enumerate(bins)]
    return [[pieces[i] for i in held] for _, _, held in sorted(placed)]
