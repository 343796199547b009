"""Which samples are read by one request."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from data.read.shards.joint_reads import GAP_BYTES, MOST_BYTES, is_one_read, joint_reads

SIZES = st.integers(1, 2 * MOST_BYTES) | st.integers(1, 100_000)
GAPS = st.integers(0, 3 * GAP_BYTES) | st.just(GAP_BYTES)


@given(st.lists(st.tuples(GAPS, SIZES), max_size=40))
def test_all_are_read_once_in_few_requests_of_bounded_size(steps: list[tuple[int, int]]) -> None:
    edges = list(accumulate(number for step in steps for number in step))
    spans = list(zip(edges[::2], edges[1::2], strict=True))
    found = list(joint_reads(spans))
    assert [number for group in found for number in group] == list(range(len(spans)))

    def size(first: int, last: int) -> int:
        return spans[last][1] - spans[first][0]

    def is_near(one: int, other: int) -> bool:
        gap = spans[other][0] - spans[one][1]
        return gap <= GAP_BYTES and gap <= size(other, other)

    for group in found:
        wanted = sum(size(number, number) for number in group)
        assert size(group[0], group[-1]) <= 2 * wanted
        assert len(group) == 1 or size(group[0], group[-1]) <= MOST_BYTES
        assert all(is_near(*pair) for pair in pairwise(group))
    for one, other in pairwise(found):  # none could have taken the first of the next
        assert not is_near(one[-1], other[0]) or size(one[0], other[0]) > MOST_BYTES


def test_members_with_much_between_them_are_read_one_by_one() -> None:
    assert is_one_read(MOST_BYTES, MOST_BYTES - 2 * 512)
    assert is_one_read(2 * 512 + 2 * GAP_BYTES, GAP_BYTES)
    assert not is_one_read(MOST_BYTES + 1, MOST_BYTES)
    assert not is_one_read(MOST_BYTES, 1000)
