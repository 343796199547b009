"""Rules for the options of token files, as pure functions, and the options themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from data import TokenFiles
from hpckit.config.entry_points import IMAGES, LANGUAGE_MODEL
from hpckit.config.spec import DecoderSpec, RunSpec


def token_files(spec: RunSpec) -> TokenFiles:
    """Returns how `data.open_dataset` reads token files for a run. Windows have one token more than
    the context of the model, so that each position has a next token."""
    model, data = spec.model, spec.data
    return TokenFiles(
        dtype=data.dtype,
        end_of_text=data.end_of_text,
        block_size=model.seq_len + 1 if isinstance(model, DecoderSpec) else None,
        column=data.column,
    )


def reads_fields(spec: RunSpec) -> bool:
    """Returns whether samples of a run have fields other than tokens, such as text or images."""
    return spec.data.images is not None or spec.data.text == "bytes"


def reading_options(spec: RunSpec, shards: str) -> dict[str, Any]:
    """Returns the arguments of `data.open_dataset` that say how `shards` are read for a run: tables
    as rows, and files of records as such, where its samples have fields; token files by the
    options of the run.

    Raises:
        DataError: the shards cannot be listed.
    """
    from data.index.table_files.table_listing import is_arrow
    from data.index.token_files.token_file_listing import first_token_file

    if reads_fields(spec):
        if is_arrow(shards):
            return {"rows": True}
        if first_token_file(shards) is None:
            return {}
    return {"token_files": token_files(spec)}


def order_options(spec: RunSpec) -> dict[str, Any]:
    """Returns the options of the order of a run's samples (`OrderOptions`); where the streams and
    the window are those of `conf/data`, tables with large groups of rows have fewer."""
    from data.read.stream_sizes import STREAMS, WINDOW

    is_default = (spec.data.streams, spec.data.window) == (STREAMS, WINDOW)
    return {
        "seed": spec.train.seed,
        "streams": None if is_default else spec.data.streams,
        "window": None if is_default else spec.data.window,
        "remix_every": spec.data.remix_every,
    }


def text_columns(spec: RunSpec) -> tuple[str, ...]:
    """Returns the names of the fields that the text of samples may have, of all sources of a
    mixture; empty: samples have one field."""
    named = [spec.data.column]
    if spec.data.mixture is not None:
        named += [source.column for source in spec.data.mixture.sources.values()]
    return tuple(dict.fromkeys(one for one in named if one is not None))


def token_file_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first."""
    data, model = spec.data, spec.model
    if spec.entry not in (LANGUAGE_MODEL, IMAGES):
        return  # other training functions check it themselves
    for name in ("dtype", "end_of_text", "column"):
        value = getattr(data, name)
        is_member = name == "column" and spec.entry == LANGUAGE_MODEL  # of text
        if value is not None and not is_member and (data.text != "tokens" or spec.entry == IMAGES):
            yield (
                f"data.{name}: {value} is an option of token files; use data=tokens, or leave it "
                "out"
            )
    end = data.end_of_text
    if end is not None and isinstance(model, DecoderSpec) and end >= model.vocab:
        yield f"data.end_of_text: {end} is not a token of model.vocab={model.vocab}"
