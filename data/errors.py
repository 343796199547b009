"""The exceptions of the data pipeline, each of which says where the problem is."""

import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

_QUERY = re.compile(r"\?[^\s'\"<>)]+")
USER = re.compile(r"(?<=://)[^/\s@]+@")
"""The user name and the password of a URL."""


def masked(text: str) -> str:
    """Return a URL, or text with URLs in it, without user names, passwords and queries."""
    if text.startswith("pipe:"):  # a command may contain secrets anywhere
        return f"pipe:{(text[5:].split() or [''])[0]} …"
    return _QUERY.sub("?…", USER.sub("", text))


def is_url(place: str) -> bool:
    """Return whether something is read from a source rather than from a local path."""
    return "://" in place or place.startswith("pipe:")


def shown(place: Path | str) -> Path | str:
    """Return a path as it is, whose `?` is no query, and a URL `masked`."""
    return masked(place) if isinstance(place, str) and is_url(place) else place


class DataError(Exception):
    """The base of all errors of `data`; the text says what is wrong, where, and what to do."""


class ArgumentError(DataError, TypeError):
    """An argument has a name that is unknown, or a value of another type."""


class PipelineError(DataError, ValueError):
    """A pipeline of webdataset has stages or options that cannot be used; webdataset raises
    ValueError for those that it does not accept."""


class EmptyDatasetError(DataError, ValueError):
    """A dataset has no samples, for which webdataset raises ValueError."""


class NoShardsError(DataError, FileNotFoundError):
    """Nothing is at the place where shards were looked for."""

    def __str__(self) -> str:
        return str(self.args[0])


class ShardError(DataError):
    """A shard is missing, damaged, or not what its index says.

    `path` is the shard's path, or its URL without secrets; `offset` is the byte of the shard at
    which the problem was found.
    """

    def __init__(self, path: Path | str, offset: int, problem: str) -> None:
        self.path = shown(path)
        super().__init__(self.path, offset, problem)
        self.offset = offset
        self.problem = problem

    def __str__(self) -> str:
        return f"shard {self.path}, offset {self.offset}: {self.problem}"


class BrokenTarError(ShardError):
    """The bytes of a shard are not a tar of samples, wherever and whenever it is read."""


class SampleError(DataError):
    """Reading or transforming one sample failed; `__cause__` is the original exception."""

    def __init__(self, position: int, key: str, shard: Path | str, problem: str) -> None:
        self.shard = shown(shard)
        super().__init__(position, key, self.shard, problem)
        self.position = position
        self.key = key
        self.problem = problem

    def __str__(self) -> str:
        return f"position {self.position}, sample {self.key!r} of {self.shard}: {self.problem}"


class FingerprintError(DataError):
    """A saved state belongs to another stream of samples.

    `differences` maps each differing field to (value in the state, value here).
    """

    def __init__(
        self, differences: Mapping[str, tuple[object, object]], advice: str | None = None
    ) -> None:
        """`advice`: what differs and what to do, in words; None: that of other shards."""
        super().__init__(dict(differences), advice)
        self.differences = dict(differences)
        self.advice = advice

    def __str__(self) -> str:
        if self.advice is not None:
            return f"the state was saved for another stream of samples: {self.advice}"
        parts = [f"{k} is {s!r} in the state, but {h!r} here" for k, (s, h) in self._items()]
        return (
            f"the state was saved for another stream of samples: {'; '.join(parts)}; open the"
            " same shards in the same order with the same seed, or start without a state"
        )

    def _items(self) -> list[tuple[str, tuple[object, object]]]:
        return sorted(self.differences.items())


class NoCacheError(DataError):
    """A compressed file is to be unpacked into a cache, and none is given."""


class IndexFileError(DataError):
    """A sidecar or a manifest is damaged, of another version, or does not fit its shards.

    `place` is its file, or its URL without secrets.
    """

    def __init__(self, place: Path | str, problem: str) -> None:
        self.place = shown(place)
        super().__init__(self.place, problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"index {self.place}: {self.problem}"


class NoIndexError(IndexFileError):
    """There is no manifest at the given path or URL."""


class IndexingError(DataError):
    """Some shards could not be indexed; `errors` has the problem of each."""

    MOST = 20  # shards that are named in the text

    def __init__(self, errors: Sequence[DataError], total: int) -> None:
        super().__init__(list(errors), total)
        self.errors = list(errors)
        self.total = total

    def __str__(self) -> str:
        lines = [f"{len(self.errors)} of {self.total} shards cannot be indexed:"]
        for error in self.errors[: self.MOST]:
            lines.append(f"  {error.headline if isinstance(error, FetchError) else error}")
        if len(self.errors) > self.MOST:
            lines.append(f"  and {len(self.errors) - self.MOST} more")
        lines.append(
            "repair these shards or leave them out, then index again: the other shards are done"
        )
        return "\n".join(lines)


class FetchError(DataError):
    """A shard could not be fetched from its source.

    `url` is shown without credentials, `attempts` has the error of each attempt, oldest first.
    """

    def __init__(self, url: str, problem: str, attempts: Sequence[str] = ()) -> None:
        super().__init__(url, problem, tuple(attempts))
        self.url = url
        self.problem = problem
        self.attempts = tuple(attempts)

    def __str__(self) -> str:
        log = "".join(f"\n  {attempt}" for attempt in self.attempts if len(self.attempts) > 1)
        return f"{self.headline}{log}"

    @property
    def headline(self) -> str:
        """The message without the attempts, on one line."""
        return f"shard {self.url}: {self.problem}"


class ObjectChangedError(FetchError):
    """The object behind a URL was replaced by another one while it was read."""


class DamagedShardError(FetchError):
    """A shard's bytes are wrong, and fetching them again did not help or came too late."""


class ReaderProcessError(DataError):
    """A reader process has ended before its time.

    `code` is its exit code, negative for a signal, None if it is not known.
    """

    def __init__(self, process: str, code: int | None, problem: str) -> None:
        super().__init__(process, code, problem)
        self.process = process
        self.code = code
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.process} {self._ended()}: {self.problem}"

    def _ended(self) -> str:
        if self.code is None:
            return "has ended"
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was killed by {signal.Signals(-self.code).name}"
        except ValueError:  # a real-time signal
            return f"was killed by signal {-self.code}"
