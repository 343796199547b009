"""Agreements among all ranks for which no rank waits: each answer is one call late."""

from __future__ import annotations

from concurrent.futures import Future

from checkpointing.ranks.rank_tree import RankTree


class LaggedMax:
    """The largest number that any rank sent at the call before; 0 at the first call.

    It is found by a thread between two calls, so that no step waits for it. Every rank must call
    equally often.
    """

    def __init__(self, tree: RankTree) -> None:
        self._tree = tree
        self._pending: Future[int] | None = None

    @property
    def pending(self) -> bool:
        """Whether a number was sent whose answer was not collected yet."""
        return self._pending is not None

    def collect(self) -> int:
        """Returns the answer to the number sent last, and forgets it; 0 if none was sent.

        Raises:
            OtherRankError: another rank has ended.
        """
        if self._pending is None:
            return 0
        found = self._pending.result()
        self._pending = None
        return found

    def say(self, value: int) -> None:
        """Send this rank's number, at least 0; the answer to the one before must have been
        collected."""
        self._pending = self._tree.begin_max(value)


class LaggedVote:
    """Each call sends this rank's vote and returns the result of the call before: True if any
    rank's vote was.

    Without a tree there is no other rank, and the vote itself is the result.
    """

    def __init__(self, tree: RankTree | None) -> None:
        self._max = LaggedMax(tree) if tree is not None else None
        self._void = False

    def __call__(self, opinion: bool) -> bool:
        if self._max is None:
            return opinion
        answer = bool(self._max.collect()) and not self._void
        self._void = False
        # the caller acts on True, so an earlier vote for True no longer has a reason
        self._max.say(int(opinion and not answer))
        return answer

    def void(self) -> None:
        """Discard the votes sent so far: the next result is False. Every rank must call it."""
        self._void = self._max is not None and self._max.pending
