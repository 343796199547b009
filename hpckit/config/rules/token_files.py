"""Rules for the options of token files, as pure functions, and the options themselves."""

from __future__ import annotations

from collections.abc import Iterator

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


def token_file_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first."""
    data, model = spec.data, spec.model
    if spec.entry not in (LANGUAGE_MODEL, IMAGES):
        return  # other training functions check it themselves
    for name in ("dtype", "end_of_text", "column"):
        value = getattr(data, name)
        if value is not None and (data.text != "tokens" or spec.entry == IMAGES):
            yield (
                f"data.{name}: {value} is an option of token files; use data=tokens, or leave it "
                "out"
            )
    end = data.end_of_text
    if end is not None and isinstance(model, DecoderSpec) and end >= model.vocab:
        yield f"data.end_of_text: {end} is not a token of model.vocab={model.vocab}"
