"""From what a user gives as the shards of a dataset to the token files among them."""

from collections.abc import Callable, Mapping
from pathlib import Path

from data.errors import DataError, shown
from data.index import shard_access
from data.index.manifest import is_manifest
from data.index.shard_listing import Shards, files_of_items, items_of
from data.index.shard_patterns import entries_of, find_files, refuse_twice
from data.index.token_files import arrow_files, flat_file, megatron_files
from data.index.token_files.token_documents import TokenDocuments
from data.index.token_files.token_file_options import TokenFiles
from data.index.token_files.token_manifest import TokenManifest

BIN, IDX, ARROW = ".bin", ".idx", ".arrow"
SUFFIXES = (BIN, IDX, ARROW)

_Open = Callable[[Path, TokenFiles], TokenDocuments]
_TAKEN: Mapping[_Open, tuple[str, ...]] = {
    flat_file.open_flat_file: ("dtype", "end_of_text"),
    megatron_files.open_megatron_files: (),
    arrow_files.open_arrow_file: ("column",),
}
"""The options that files of each kind take, which the files of others do not need."""


def open_token_files(shards: Shards, options: TokenFiles | None = None) -> TokenManifest | None:
    """Open token files; None if `shards` are no token files.

    An item is a `.bin` file (of Megatron if its `.idx` is beside it), the common name of such a
    pair, an `.arrow` file, a folder that `save_to_disk` of Hugging Face's datasets wrote, or a glob
    or `{0..9}` range of files. Raises DataError for files that cannot be read so, and for `options`
    that are given for other shards.
    """
    items = items_of(shards)
    paths = files_of_items(items, _files, "a token file")
    given = options or TokenFiles()
    if paths is None:
        for item in items:
            reason = "it is not a token file: a .bin, a .bin with .idx, or a folder of save_to_disk"
            given.refuse(shown(item), reason, "dtype", "end_of_text", "column")
        return None
    refuse_twice((path for path, _ in paths), "documents")
    return TokenManifest([open_(path, given) for path, open_ in paths], ", ".join(items))


def first_token_file(shards: Shards) -> str | None:
    """Return the first item of `shards` that is a token file, None if there is none. Raises
    DataError."""
    return next((item for item in items_of(shards) if _files(item) is not None), None)


def options_taken(shards: Shards) -> frozenset[str]:
    """Return the options of `TokenFiles` that these shards take, besides `block_size`: none if they
    are no token files. Raises DataError."""
    paths = files_of_items(items_of(shards), _files, "a token file") or ()
    return frozenset(name for _, open_ in paths for name in _TAKEN[open_])


def _files(item: str) -> list[tuple[Path, _Open]] | None:
    """Return the files of an item and how each is opened; None if it is not a token file."""
    if shard_access.is_url(item):
        instead = "copy it, or `hpckit data pack` it to tars, which are read from any URL"
        shard_access.refuse_at_url(item, SUFFIXES, "token files", instead)
        return None
    path = Path(item).expanduser().absolute()
    if path.is_dir():
        return _files_of_folder(path)
    if path.is_file():
        return [_file(path)] if path.suffix in SUFFIXES else None
    pair = path.with_name(f"{path.name}{BIN}"), path.with_name(f"{path.name}{IDX}")
    if all(one.is_file() for one in pair):
        return [_file(pair[0])]
    if path.suffix not in SUFFIXES:
        return None
    return [_file(one) for one in find_files(path, "token files")]


def _files_of_folder(folder: Path) -> list[tuple[Path, _Open]] | None:
    if arrow_files.is_saved_dataset(folder):
        return [(path, arrow_files.open_arrow_file) for path in arrow_files.saved_files(folder)]
    arrow_files.refuse_splits(folder)
    entries = entries_of(folder)
    if is_manifest(folder) or any(path.suffix == ".tar" for path in entries):
        return None
    there = [path.name for path in entries if path.suffix in (BIN, ARROW)]
    if there:
        raise DataError(
            f"{folder} holds no tars, but token files such as {there[0]}: give a file, or a glob"
            f" such as {folder}/*{Path(there[0]).suffix}"
        )
    return None


def _file(path: Path) -> tuple[Path, _Open]:
    if path.suffix == ARROW:
        return path, arrow_files.open_arrow_file
    tokens, index = path.with_suffix(BIN), path.with_suffix(IDX)
    if not tokens.is_file():
        raise DataError(f"{path}: the file of its tokens, {tokens.name}, is not beside it")
    if path.suffix == IDX or megatron_files.has_index(index):
        return tokens, megatron_files.open_megatron_files
    if index.is_file() and not tokens.with_suffix(".tar").is_file():
        raise DataError(
            f"{tokens}: {index.name} beside it is not an index of Megatron (MMIDIDX); copy it "
            "again, or move it away if the tokens are a flat file"
        )
    return tokens, flat_file.open_flat_file
