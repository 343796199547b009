"""Opens a dataset from the user's text, and determines the order from a loader's state."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpckit.cli.common.command_output import listing
from hpckit.cli.common.store_errors import CommandUsageError

if TYPE_CHECKING:
    from data import TokenFiles
    from data.cache.node_store import CacheLocal
    from data.index.in_place_manifest import InPlaceManifest
    from data.order.sample_order import Order
    from data.read.dataset import Dataset
    from data.read.sample_stream import MixedStream, SingleStream
    from hpckit.config.spec import RunSpec

_BESIDE = ("position", "pack", "skipped", "tokens", "seen", "batch_ramp")
"""Fields of a state that do not identify its stream."""
_MOST_BYTES = 16 << 20  # largest size of a file with a state


def open_shards(
    shards: Sequence[str],
    cache: Path | None = None,
    cache_bytes: int = 0,
    cache_local: CacheLocal = False,
    token_files: TokenFiles | None = None,
) -> Dataset:
    """Open the dataset that the command line names. Raises DataError."""
    from data import TokenFiles
    from data.read.dataset import open_dataset
    from hpckit.system.store_timeouts import interactive_sources

    given: str | list[str] = shards[0] if len(shards) == 1 else list(shards)
    return open_dataset(
        given,
        cache=cache,
        cache_bytes=cache_bytes,
        cache_local=cache_local,
        # without options, the shards may also be files of records or tables
        token_files=None if token_files == TokenFiles() else token_files,
        sources=interactive_sources(),
    )


def open_in_place(dataset: str, token_files: TokenFiles | None) -> InPlaceManifest | None:
    """Open token files, files of records or tables; None if `dataset` is none of them. Raises
    DataError, also for compressed files, which need a cache."""
    from data import TokenFiles
    from data.index.compressed.compressed_files import Unpacker, unpacked_shards
    from data.index.record_files.record_listing import open_record_files
    from data.index.table_files.table_listing import open_table_files
    from data.index.token_files.token_file_listing import open_token_files

    if token_files in (None, TokenFiles()):
        unpack = Unpacker(None, 0, lambda folder, size: False)
        unpacked_shards(dataset, unpack)
        others = open_record_files(dataset, unpack) or open_table_files(dataset)
        if others is not None:
            return others
    return open_token_files(dataset, token_files)


@dataclass(frozen=True)
class OrderOverrides:
    """The fields of an order that were given on the command line; None: not given."""

    seed: int | None = None
    streams: int | None = None
    window: int | None = None
    remix: int | None = None

    @property
    def said(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if value is not None}


def order_of(
    dataset: Dataset, state: Mapping[str, Any] | None, knobs: OrderOverrides
) -> SingleStream:
    """Return the stream that a loader over `dataset` reads, in the order of `state` if there is
    one.

    Raises CommandUsageError if the state is not a loader's, or differs from the command line;
    FingerprintError if it belongs to other shards.
    """
    from data.order.sample_order import NATURAL, ORDER
    from data.read.sample_stream import SingleStream

    if state is None:
        return SingleStream(dataset, _order(dataset, knobs.said))
    name = state.get("order")
    if name not in (ORDER, NATURAL):
        more = (
            ": the samples of a mixture cannot be found in one dataset" if is_mixture(state) else ""
        )
        raise CommandUsageError(
            f"the state is of the order {name!r}, not {ORDER} or {NATURAL}{more}"
        )
    stated = {field: value for field, value in state.items() if field not in _BESIDE}
    for field, value in knobs.said.items():
        has = stated.get(field, 0 if field == "remix" else value)
        if has != value:
            option = "remix-every" if field == "remix" else field
            raise CommandUsageError(
                f"--{option} {value}, but the state has {has}: leave this option out"
            )
    fields = {field: _natural(stated, field) for field in ("seed", "streams", "window", "remix")}
    given = {field: value for field, value in fields.items() if value is not None}
    made = SingleStream(dataset, _order(dataset, given, shuffle=name == ORDER))
    return made.restored(stated)


def is_mixture(state: Mapping[str, Any] | None) -> bool:
    """Return whether the state is that of a loader over several datasets."""
    from data.order.mixture_blocks import MIX_ORDERS

    return state is not None and state.get("order") in MIX_ORDERS


def open_mixture(
    shards: Sequence[str],
    state: Mapping[str, Any],
    knobs: OrderOverrides,
    token_files: TokenFiles | None = None,
    spec: RunSpec | None = None,
) -> MixedStream:
    """Open the sources of a mixture, each given as NAME=SHARDS, and return the stream of `state`.

    Args:
        spec: of the run that has saved the state, whose options are used where the command line has
            none.

    Raises CommandUsageError if one is not given so; DataError; FingerprintError if the state
    belongs to other datasets.
    """
    from data.read.sample_stream import mixed
    from hpckit.config.rules.token_files import order_options

    given = dict(text.partition("=")[::2] for text in shards)
    if len(given) < len(shards) or not all(name and place for name, place in given.items()):
        raise CommandUsageError(
            "the state is of a mixture: give each of its sources as NAME=SHARDS, as "
            "web=/data/web code=/data/code.bin"
        )
    datasets = [
        open_shards([place], token_files=_token_files_of_source(name, token_files, spec))
        for name, place in given.items()
    ]
    of_run = {"remix_every": 0} if spec is None else order_options(spec)
    stream = mixed(
        datasets,
        [1, *[0] * (len(datasets) - 1)],  # `restored` gives it those of the state
        names=list(given),
        seed=_natural(state, "seed") or 0,
        streams=knobs.streams or of_run.get("streams"),
        window=knobs.window or of_run.get("window"),
        remix_every=of_run["remix_every"] if knobs.remix is None else knobs.remix,
        block=_natural(state, "block") or 1024,
    )
    return stream.restored({f: value for f, value in state.items() if f not in _BESIDE})


def spec_of_run(place: str | None) -> RunSpec | None:
    """Return the newest spec of a run directory; None for another place, and for the spec of a
    later release."""
    from hpckit.config.spec_parser import SpecError, read_spec
    from hpckit.rundir.directory import RunDir

    if place is None or not (Path(place) / "submissions").is_dir():
        return None
    run = RunDir(Path(place))
    try:
        return read_spec(run.spec(run.submission_numbers()[-1]))
    except (SpecError, OSError, IndexError):
        return None


def _token_files_of_source(
    name: str, given: TokenFiles | None, spec: RunSpec | None
) -> TokenFiles | None:
    """Return how the token files of a source are read: as the run reads them, unless the command
    line says otherwise."""
    from hpckit.config.mixture import options_of
    from hpckit.config.rules.token_files import token_files

    mixture = None if spec is None else spec.data.mixture
    if spec is None or mixture is None or name not in mixture.sources:
        return given
    own = token_files(options_of(spec, mixture.sources[name]))
    said = {} if given is None else {k: v for k, v in vars(given).items() if v is not None}
    return replace(own, **said)


def position_of(state: Mapping[str, Any]) -> int:
    """Return the position of a loader's state. Raises CommandUsageError."""
    found = _natural(state, "position")
    if found is None:
        raise CommandUsageError(
            "the state has no position: it was not returned by the state_dict() of a loader"
        )
    return found


def read_state(text: str) -> dict[str, Any]:
    """Read a loader's state from JSON, a file with JSON, or a part of such a document.

    Raises CommandUsageError if there is none, or more than one.
    """
    try:
        found = json.loads(_content(text))
    except (ValueError, RecursionError) as error:
        raise CommandUsageError(f"--state: not JSON: {error}") from None
    return only_state(dict(states_in(found)), "--state")


def only_state(states: Mapping[str, dict[str, Any]], where: str) -> dict[str, Any]:
    """Return the only one of the states. Raises CommandUsageError if there is not exactly one."""
    if len(states) != 1:
        what = f"{len(states)} states of loaders: {listing(sorted(states))}" if states else "none"
        raise CommandUsageError(f"{where}: expected the state_dict() of one loader, found {what}")
    return next(iter(states.values()))


def states_in(tree: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, state) for each loader's state in nested dicts and lists."""
    if isinstance(tree, dict) and "order" in tree and "position" in tree:
        yield path or ".", tree
    elif isinstance(tree, dict | list):
        for name, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from states_in(part, f"{path}/{name}")


def _content(text: str) -> str:
    if text.lstrip().startswith("{"):
        return text
    try:
        if text == "-":
            return sys.stdin.read(_MOST_BYTES)
        with Path(text).open(encoding="utf-8") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise CommandUsageError(f"--state: {text}: {error.strerror}") from None


def _natural(state: Mapping[str, Any], field: str) -> int | None:
    value = state.get(field)
    if value is not None and (type(value) is not int or value < 0):
        raise CommandUsageError(f"the state's {field} is {value!r}, not a natural number")
    return value


def _order(dataset: Dataset, given: Mapping[str, int], shuffle: bool = True) -> Order:
    from data.order.sample_order import Order
    from data.read.stream_sizes import stream_sizes

    if len(dataset) == 0:
        raise CommandUsageError(f"there are no samples in the {len(dataset.manifest)} shards")
    sizes = stream_sizes(dataset.manifest, given.get("streams"), given.get("window"))
    try:
        return Order(
            dataset.manifest.samples,
            seed=given.get("seed", 0),
            streams=sizes.streams,
            window=sizes.window,
            remix_every=given.get("remix", 0),
            shuffle=shuffle,
        )
    except ValueError as error:
        raise CommandUsageError(str(error)) from None
