"""Writing a dataset sample by sample, as shards with their index and manifest."""

import re
from collections.abc import Mapping
from pathlib import Path

from data.errors import DataError
from data.index.manifest import NAME, Manifest, save_manifest
from data.index.manifest_rows import ShardRow, row_of
from data.index.shard import sample_token_counts, sidecar
from data.index.shard.sample_token_counts import Tokens
from data.index.shard.shard_scan import with_tokens
from data.index.tar.member_names import RESERVED_EXTENSIONS, split_name
from data.keyword_options import checks_arguments
from data.write.shard_file import ShardFile

_NUMBER = re.compile(r"%0?\d*d")


class ShardWriter:
    """Writes samples into shards named by `pattern`, such as `out/shard-%06d.tar`.

        with ShardWriter("out/shard-%06d.tar", max_samples=1000) as writer:
            writer.write({"__key__": "cat/0001", "jpg": image, "txt": "a cat"})

    A new shard is begun where one more sample would exceed `max_samples` or `max_bytes` (of the
    tar). A shard appears when it is whole, with its index beside it; nothing is overwritten.
    `tokens` says how to count each sample's tokens (see `data.index.shard.sample_token_counts`).
    The same samples give the same bytes.

    `close`, or the end of the `with` block, finishes the last shard and writes `dataset.index`; an
    exception inside the block removes the unfinished shard and writes no manifest. Writers that run
    in parallel need patterns of their own and `manifest=False`; `build_index` of the folder then
    makes one manifest of all their shards, without reading them again.
    """

    @checks_arguments
    def __init__(
        self,
        pattern: str | Path,
        *,
        max_samples: int = 10_000,
        max_bytes: int = 1 << 30,
        tokens: Tokens | None = None,
        manifest: bool = True,
    ) -> None:
        self.shards: list[ShardRow] = []
        self._pattern = _checked(pattern)
        self._max_samples, self._max_bytes = _at_least(max_samples), _at_least(max_bytes)
        self._tokens = tokens
        self._has_manifest = manifest
        self._shard: ShardFile | None = None
        self._keys: set[str] = set()  # of the present shard
        self._counts: list[int] = []
        self._is_closed = False
        _check_tokens(tokens)
        self._prepare()

    def write(self, sample: Mapping[str, object]) -> None:
        """Append a sample: its `__key__`, and the content of each extension as bytes or text.

        Other fields in `__` are left out, such as those that a reader adds. Raises DataError for a
        sample that could not be read back unchanged; nothing of it is written then. OSError.
        """
        if self._is_closed:
            raise DataError(f"the writer of {self._pattern} is closed")
        key, members = _members(sample)
        count = _count(key, members, self._tokens)
        if self._shard is not None and self._is_full(members):
            self._finish_shard()
        if key in self._keys:
            raise DataError(f"sample {key!r} was already written to the same shard")
        try:
            self._append(key, members)
        except BaseException:
            self._abort()  # the file may contain half a sample
            raise
        if count is not None:
            self._counts.append(count)

    def close(self) -> Manifest | None:
        """Finish the last shard, and the manifest if there is to be one."""
        if self._is_closed:
            return None
        if self._shard is not None:
            self._finish_shard()
        self._is_closed = True
        if not self._has_manifest:
            return None
        return save_manifest(self.shards, self._manifest, sample_token_counts.name_of(self._tokens))

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._abort()

    @property
    def _manifest(self) -> Path:
        return Path(self._pattern).parent / NAME

    def _prepare(self) -> None:
        self._manifest.parent.mkdir(parents=True, exist_ok=True)
        for path in (self._path(0), *([self._manifest] if self._has_manifest else [])):
            if path.exists():
                raise DataError(
                    f"{path} already exists; write to a new folder, or with another pattern and "
                    "manifest=False, and index the folder afterwards"
                )

    def _path(self, number: int) -> Path:
        return Path(self._pattern % number)

    def _is_full(self, members: Mapping[str, bytes]) -> bool:
        assert self._shard is not None
        more = sum(1024 + len(content) for content in members.values())
        return len(self._keys) >= self._max_samples or self._shard.size + more > self._max_bytes

    def _append(self, key: str, members: Mapping[str, bytes]) -> None:
        if self._shard is None:
            self._shard = ShardFile(self._path(len(self.shards)))
        for extension, content in members.items():
            self._shard.add(f"{key}.{extension}", content)
        self._keys.add(key)

    def _finish_shard(self) -> None:
        shard, self._shard = self._shard, None
        assert shard is not None
        try:
            index = shard.finish()
        except BaseException:
            shard.abort()
            self._is_closed = True
            raise
        if self._tokens is not None:
            index = with_tokens(index, self._counts, sample_token_counts.name_of(self._tokens))
        sidecar.save(str(shard.path), index)
        self.shards.append(row_of(str(shard.path.absolute()), index))
        self._keys, self._counts = set(), []

    def _abort(self) -> None:
        self._is_closed = True
        if self._shard is not None:
            self._shard.abort()
            self._shard = None


def _check_tokens(way: Tokens | None) -> None:
    sample_token_counts.check(way)


def _checked(pattern: str | Path) -> str:
    text = str(Path(pattern).expanduser())
    folder, _, name = text.rpartition("/")
    if "%" in folder or not name.endswith(".tar") or len(_NUMBER.findall(name)) != 1:
        raise DataError(f"shards named {text!r}: expected a name such as shard-%06d.tar")
    if name.count("%") != 1:
        raise DataError(f"shards named {text!r}: only one % is allowed, for the number")
    return text


def _at_least(number: int) -> int:
    if number < 1:
        raise DataError(f"the maximum of a shard must be at least 1, got {number}")
    return number


def _members(sample: Mapping[str, object]) -> tuple[str, dict[str, bytes]]:
    """Return a sample's key, and its members by extension. Raises DataError."""
    if not isinstance(sample, Mapping):
        raise DataError(f"a sample is a mapping of its key and members, got {sample!r:.100}")
    key = sample.get("__key__")
    if not isinstance(key, str):
        raise DataError(f"a sample must have its key as text in '__key__', got {key!r:.100}")
    members: dict[str, bytes] = {}
    for extension, content in sample.items():
        if not isinstance(extension, str):
            raise DataError(f"sample {key!r}: an extension is text, got {extension!r:.100}")
        if extension in RESERVED_EXTENSIONS or extension.startswith("__"):
            continue
        name = f"{key}.{extension}"
        if not extension or "\0" in name or split_name(name) != (key, extension):
            raise DataError(
                f"sample {key!r}, {extension!r}: would not be read back under this name (a key has"
                " no dot after its last slash, an extension is lower case and has no slash)"
            )
        members[extension] = _bytes(content, name)
    if not members:
        raise DataError(f"sample {key!r} has only its key")
    return key, members


def _bytes(content: object, name: str) -> bytes:
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    if not isinstance(content, str):
        raise DataError(f"{name!r}: encode {type(content).__name__} as bytes or text first")
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{name!r}: its text is not UTF-8 ({error})") from error


def _count(key: str, members: Mapping[str, bytes], way: Tokens | None) -> int | None:
    if way is None:
        return None
    try:
        return sample_token_counts.of_sample(members, way)
    except (ValueError, KeyError, TypeError) as error:
        name = sample_token_counts.name_of(way)
        raise DataError(f"sample {key!r}: {name!r} made no tokens: {error!r}") from error
