"""Checks before submission that the shards of a run exist and fit its model.

Readers of data are imported only if a manifest does not tell all that is to be known, as importing
numpy takes a while.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from data import DataError, FetchError, IndexingError
from data.errors import NoCacheError, is_url
from data.index.manifest_summary import summarise_folder
from data.index.shard_sizes import resized
from hpckit.config.entry_points import IMAGES, LANGUAGE_MODEL, is_built_in, is_training_function
from hpckit.config.mixture import (
    KEY,
    SourceSize,
    end_position,
    options_of,
    shares,
    source_keys,
    source_plans,
    stages,
)
from hpckit.config.rules.model import decoder_of
from hpckit.config.rules.token_files import reading_options, text_columns
from hpckit.config.shard_places import shard_places
from hpckit.config.spec import ImageSpec, PackSpec, RunSpec
from hpckit.submit.shard_packing import is_stdlib_by_default, packing_problem
from hpckit.system.store_timeouts import interactive_sources

if TYPE_CHECKING:
    from data import Dataset
    from data.index.manifest_summary import DatasetSummary

_MAX_SHARDS = 4
"""The largest number of shards with problems that a message lists."""

Pack = Callable[[PackSpec, Path], None]


@dataclass(frozen=True)
class DatasetCheck:
    """The results of the checks of data."""

    dataset: Dataset | DatasetSummary | None
    """The dataset; None if it is still to be packed, or cannot be read."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Problems of data that the run may not read."""


def check_dataset(spec: RunSpec, pack: Pack | None) -> DatasetCheck:
    """Checks the shards of training and validation. Whether a training function of the user reads
    them is not known, so only a place that was given and holds nothing is a problem there.

    Args:
        pack: packs missing shards. None: they are not packed.
    """
    if not is_training_function(spec):
        return DatasetCheck(None)
    found = _check(spec, pack)
    if is_built_in(spec) or not found.problems or _is_missing(spec):
        return found
    may_start = f"{spec.entry} starts all the same, and fails if it opens them"
    return DatasetCheck(found.dataset, [], [f"{line}; {may_start}" for line in found.problems])


def _check(spec: RunSpec, pack: Pack | None) -> DatasetCheck:
    if spec.data.mixture is not None:
        problems, notes = check_mixture(spec)
        return DatasetCheck(None, [*problems, *_validation_problems(spec)], notes)
    if (summary := _sound_dataset(spec, spec.data.shards)) is not None:
        return DatasetCheck(summary, _validation_problems(spec))
    try:
        dataset = _dataset(spec, pack)
    except NoCacheError as error:
        problems, notes = _compressed(spec, "data.shards", error)
        return DatasetCheck(None, [*problems, *_validation_problems(spec)], notes)
    except (DataError, OSError) as error:
        return DatasetCheck(None, _unreadable("data.shards", error))
    problems = []
    if dataset is not None:
        problems += _dataset_problems(spec, "data.shards", spec.data.shards or "", dataset)
    return DatasetCheck(dataset, [*problems, *_validation_problems(spec)])


def _sound_dataset(spec: RunSpec, shards: str | None) -> DatasetSummary | None:
    """Returns a dataset of which no check would find a problem, as far as that is known without
    opening it; None: it has to be opened.

    Args:
        shards: where the dataset is.
    """
    data = spec.data
    has_options = any(one is not None for one in (data.dtype, data.end_of_text, data.column))
    reads_tokens = spec.entry == LANGUAGE_MODEL and data.text != "bytes"
    reads_sample = spec.entry == IMAGES
    if shards is None or has_options or reads_tokens or reads_sample or data.check == "content":
        return None
    found = summarise_folder(Path(shards))
    return found if found and resized(found.manifest) is None else None


def _is_missing(spec: RunSpec) -> bool:
    """Returns whether the user gave a place for shards, and nothing is there."""
    if spec.data.shards and is_stdlib_by_default(spec.data.pack, spec.data.shards):
        return False
    from data.source.address import Address

    places = [Address.parse(one).local for one in shard_places(spec.data).values()]
    return any(place is not None and not Path(place).exists() for place in places)


def _dataset(spec: RunSpec, pack: Pack | None) -> Dataset | None:
    assert spec.data.shards is not None  # the spec is valid
    folder = Path(spec.data.shards)
    if spec.data.pack and not folder.exists():
        if problem := packing_problem(spec.data.pack, spec.data.shards):
            raise DataError(problem)
        if pack is None:
            return None
        pack(spec.data.pack, folder)
    return _open_dataset(spec, spec.data.shards)


def _open_dataset(spec: RunSpec, shards: str) -> Dataset:
    from data import open_dataset

    return open_dataset(
        shards,
        sources=interactive_sources(),
        check=spec.data.check,
        **reading_options(spec, shards),
    )


def changed_mixture_problems(before: RunSpec, spec: RunSpec) -> list[str]:
    """Returns the problems of the mixture with which the run `before` is to continue as `spec`;
    empty if that is the same one, for as many steps. The same one for more steps is compared with
    its budgets and epochs, unless the run has had another one before."""
    now, was = spec.data.mixture, before.data
    if now is None or not is_training_function(spec):
        return []
    is_same, is_longer = now == was.mixture, spec.train.steps > before.train.steps
    if is_same and not (is_longer and was.identity_mixture is None):
        return []
    if not is_built_in(spec) and not _is_missing(spec):
        return []
    return check_mixture(spec, is_continued=not is_same)[0]


def check_mixture(spec: RunSpec, *, is_continued: bool = False) -> tuple[list[str], list[str]]:
    """Returns the problems of the sources of a mixture and of its weights, and lines about what the
    run will take of each.

    Args:
        is_continued: whether the run has begun with another mixture. How much it has read of each
            source is not known here then, so budgets and epochs are not compared, and no lines
            returned.
    """
    from data.order.mixture import Mixture, segment

    mixture = spec.data.mixture
    assert mixture is not None
    problems, notes, sizes = list[str](), list[str](), list[SourceSize]()
    for name, source in mixture.sources.items():
        key = f"{source_keys(name)}.shards"
        try:
            own = options_of(spec, source)
            dataset = _open_dataset(own, source.shards)
            found = _dataset_problems(own, key, source.shards, dataset)
        except NoCacheError as error:
            found, more = _compressed(spec, key, error)
            problems, notes = problems + found, notes + more
            continue
        except (DataError, OSError) as error:
            found = _unreadable(key, error)
        problems += found
        if not found:
            tokens = dataset.manifest.n_tokens
            sizes.append(SourceSize(len(dataset), None if tokens is None else int(tokens.sum())))
    if problems or notes:
        return problems, notes
    try:
        plan = stages(spec, sizes)
        segments = [segment(stage.position, stage.weights) for stage in plan]
        Mixture(segments, block=mixture.block)
    except ValueError as error:
        text = str(error)
        return [text if text.startswith(KEY) else f"{KEY}: {text}"], []
    if is_continued:
        return [], []
    end = end_position(spec, plan, sizes)
    plans, problems = source_plans(spec, shares(plan, end), sizes)
    epochs = ", ".join(f"{each.epochs:.3g} of {name}" for name, each in plans.items())
    notes = [f"{KEY}: {spec.train.steps:,} steps are about these epochs: {epochs}"]
    unused = [number for number, stage in enumerate(plan[1:]) if stage.position >= end]
    if unused:
        notes.append(
            f"{KEY}.stages[{unused[0]}]: begins at sample {plan[unused[0] + 1].position:,} of the "
            f"stream, and {spec.train.steps:,} steps end at {end:,}: it is not reached"
        )
    return problems, notes


def _validation_problems(spec: RunSpec) -> list[str]:
    key, shards = "data.validation", spec.data.validation
    if shards is None:
        return []
    if _sound_dataset(spec, shards) is not None:
        return []
    try:
        dataset = _open_dataset(spec, shards)
        return _dataset_problems(spec, key, shards, dataset)
    except NoCacheError as error:
        return _compressed(spec, key, error)[0]
    except (DataError, OSError) as error:
        return _unreadable(key, error)


def _compressed(spec: RunSpec, key: str, error: NoCacheError) -> tuple[list[str], list[str]]:
    """Returns the problems of files that the nodes unpack into their caches, and the notes: nothing
    is unpacked here, so that their samples are not known yet."""
    if spec.data.cache is None or not spec.data.cache_gb:
        return [
            f"{key}: {error}; for a run these are data.cache, a folder on each node's own disk, "
            "and data.cache_gb"
        ], []
    return [], [
        f"{key}: compressed files are unpacked into {spec.data.cache} of each node when the run "
        "starts; their samples are not checked here"
    ]


def _unreadable(key: str, error: DataError | OSError) -> list[str]:
    wrong = error.errors if isinstance(error, IndexingError) else [error]
    messages = [one.headline if isinstance(one, FetchError) else str(one) for one in wrong]
    lines = [f"{key}: {text}" for text in messages[:_MAX_SHARDS]]
    if (more := len(wrong) - _MAX_SHARDS) > 0:
        lines.append(f"{key}: and {more} more shards; `hpckit data index` lists all")
    return lines


def _dataset_problems(spec: RunSpec, key: str, shards: str, dataset: Dataset) -> list[str]:
    """Returns the problems of a dataset: it has no samples or, for tokens, the
    model's vocabulary is too small."""
    if len(dataset) == 0:
        return [f"{key}: {shards} holds no samples"]
    if problem := resized(dataset.manifest):
        return [
            f"{key}: {problem}; the index is of other shards or an older one: `hpckit data index "
            f"{shards}` rebuilds it"
        ]
    if spec.data.check == "content":
        try:
            dataset.index(0)
        except (DataError, OSError) as error:
            return _unreadable(key, error)
    from data.index.in_place_manifest import InPlaceManifest
    from data.index.token_files.token_manifest import TokenManifest

    if isinstance(dataset.manifest, TokenManifest):
        return _token_file_problems(spec, key, shards, dataset.manifest.highest_token)
    if spec.entry == LANGUAGE_MODEL and spec.data.text == "bytes":
        return _text_problems(spec, key, dataset)
    if spec.entry == IMAGES:
        return [] if is_url(shards) else _image_problems(spec, key, dataset)
    if spec.entry != LANGUAGE_MODEL:
        return []
    if isinstance(dataset.manifest, InPlaceManifest):
        return [
            f"{key}: {shards} has no token counts, by which documents are packed; write its tokens "
            "as token files, as a Hugging Face dataset, or as tars, or train on text by "
            "data.text=bytes"
        ]
    if dataset.manifest.n_tokens is None:
        return [
            f"{key}: {shards} has no token counts; `hpckit data pack --tokenizer` makes "
            "shards with them, `hpckit data index --tokens npy` counts those that are there"
        ]
    from data import vocabulary_of

    try:
        vocabulary = vocabulary_of(dataset)
    except DataError as error:
        return [f"{key}: {error}"]
    there = decoder_of(spec).vocab
    if vocabulary is None or vocabulary.size <= there:
        return []
    return [f"model.vocab: {there} is less than the {vocabulary.size} different tokens of {shards}"]


def _text_problems(spec: RunSpec, key: str, dataset: Dataset) -> list[str]:
    """Returns the problems of samples of other formats than tars, of which the first is read: it
    has not the field of the text."""
    from data.index.in_place_manifest import InPlaceManifest

    if not isinstance(dataset.manifest, InPlaceManifest):
        return []
    from hpckit.trainer.batches.byte_text import text_of

    try:
        text_of(dataset.read(0), text_columns(spec))
    except (DataError, OSError) as error:
        return _unreadable(key, error)
    return []


def _image_problems(spec: RunSpec, key: str, dataset: Dataset) -> list[str]:
    """Returns the problems of images, of which the first sample is read: it has no image, no label,
    or one that the model does not know."""
    from hpckit.trainer.batches.labelled_images import check_sample

    assert isinstance(spec.model, ImageSpec)  # the spec is valid
    try:
        check_sample(dataset.read(0), spec.model.classes)
    except (DataError, OSError) as error:
        return _unreadable(key, error)
    return []


def _token_file_problems(spec: RunSpec, key: str, shards: str, highest: int | None) -> list[str]:
    """Returns the problems of token files: they are no samples of the training function, or have
    tokens that the model does not know, as far as they were read."""
    if spec.entry == IMAGES or (spec.entry == LANGUAGE_MODEL and spec.data.text == "bytes"):
        return [f"{key}: {shards} holds tokens, which are trained on with data=tokens"]
    if spec.entry != LANGUAGE_MODEL or highest is None or highest < decoder_of(spec).vocab:
        return []
    return [
        f"model.vocab: {decoder_of(spec).vocab} is not more than the token {highest} of {shards}; "
        "use a larger vocabulary, or the right data.dtype"
    ]
