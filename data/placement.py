"""Which positions of a global step a rank takes: a pure function of (step, rank, world)."""


def share(first: int, size: int, rank: int, world: int) -> range:
    """The stream positions that `rank` of `world` takes of the step [first, first + size).

    The shares of all ranks are contiguous, disjoint, cover the step, and differ by one sample at
    most. Raises ValueError if the rank is not in [0, world) or an argument is negative.
    """
    if first < 0 or size < 0 or not 0 <= rank < world:
        raise ValueError(f"no share of first={first}, size={size}, rank={rank}, world={world}")
    return range(first + rank * size // world, first + (rank + 1) * size // world)
