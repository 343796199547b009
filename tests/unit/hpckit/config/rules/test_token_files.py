"""The options of token files in a spec."""

from __future__ import annotations

from typing import Any

import pytest

from data import TokenFiles
from hpckit.config.rules.token_files import text_columns, token_files
from hpckit.config.spec import DecoderSpec
from hpckit.config.spec_parser import SpecError
from tests.unit.hpckit.specs_and_processes import make_spec

TOKENS = {"data.text": "tokens"}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"data.dtype": "uint16"},
            "data.dtype: uint16 is an option of token files; use data=tokens",
        ),
        ({"data.end_of_text": 0}, "data.end_of_text: 0 is an option of token files"),
        (
            {**TOKENS, "data.end_of_text": 257},
            "data.end_of_text: 257 is not a token of model.vocab",
        ),
    ],
)
def test_options_that_cannot_be(values: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError, match=line):
        make_spec(values)


def test_a_column_is_of_tokens_or_of_text_and_not_of_images() -> None:
    assert text_columns(make_spec({"data.column": "text"})) == ("text",)
    with pytest.raises(SpecError, match=r"data\.column: ids is an option of token files"):
        make_spec({"data.column": "ids"}, data="images", model="resnet_nano")


def test_varlen_attention_is_for_windows_of_documents() -> None:
    varlen = {"memory.attention": "varlen"}
    make_spec({**TOKENS, **varlen, "data.balance": "attention"})
    for changes, says in (
        (varlen, r"memory\.attention: varlen computes attention within the documents"),
        ({**TOKENS, "data.balance": "attention"}, r"data\.balance: attention makes no difference"),
        ({**TOKENS, **varlen, "memory.compile": True}, "cannot be compiled on CPUs"),
        (
            {**TOKENS, **varlen, "train.sequence_ramp": {"start": 32, "samples": 100}},
            r"varlen takes the offsets of documents in windows of one length",
        ),
        ({**TOKENS, **varlen, "cluster.device": "cuda"}, "computes in bf16 or fp16 on GPUs"),
    ):
        with pytest.raises(SpecError, match=says):
            make_spec(changes)


def test_other_training_functions_decide_for_themselves() -> None:
    make_spec({"entry": "os:getcwd", "data.end_of_text": 50256})


def test_windows_have_a_next_token_for_each_position() -> None:
    spec = make_spec({**TOKENS, "data.end_of_text": 256, "data.column": "ids"})
    assert isinstance(spec.model, DecoderSpec)
    length = spec.model.seq_len + 1
    assert token_files(spec) == TokenFiles(end_of_text=256, column="ids", block_size=length)
