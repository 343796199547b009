"""Text that is packed as tokens: what is written, counted and recorded, and what is refused."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from data import (
    DataError,
    Loader,
    PackedSequence,
    Packing,
    SampleError,
    Tokeniser,
    build_index,
    open_dataset,
    pack_folder,
    vocabulary_of,
)

WORDS = {"<unk>": 0, "a": 1, "b": 2, "<|endoftext|>": 3, "far": 9}


def tokenizer(path: Path, words: dict[str, int] = WORDS) -> Path:
    made = Tokenizer(WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.enable_truncation(2)  # as files of models may say
    made.enable_padding(length=7)
    made.save(str(path))
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in {"one": "a b a far", "two": "b", "empty": ""}.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def packed(texts: Path, out: Path, words: dict[str, int] = WORDS) -> Path:
    pack_folder(texts, out, tokeniser=Tokeniser(tokenizer(out.with_suffix(".json"), words)))
    return out


def test_each_document_is_its_tokens_and_the_end(texts: Path, tmp_path: Path) -> None:
    dataset = open_dataset(packed(texts, tmp_path / "out"))
    found = [dataset.read(i) for i in range(len(dataset))]
    arrays = {one["__key__"]: np.load(BytesIO(one["npy"])) for one in found}
    assert {key: tokens.tolist() for key, tokens in arrays.items()} == {
        "empty": [3],
        "one": [1, 2, 1, 9, 3],
        "two": [2, 3],
    }
    assert {tokens.dtype for tokens in arrays.values()} == {np.dtype(np.uint16)}
    assert dataset.manifest.tokens == "npy"
    assert dataset.manifest.n_tokens is not None
    assert dataset.manifest.n_tokens.sum() == 8


def test_large_vocabularies_have_wide_tokens(texts: Path, tmp_path: Path) -> None:
    dataset = open_dataset(packed(texts, tmp_path / "out", {**WORDS, "far": 70_000}))
    tokens = np.load(BytesIO(dataset.read(1)["npy"]))
    assert (tokens.dtype, tokens.tolist()) == (np.dtype(np.uint32), [1, 2, 1, 70_000, 3])
    vocabulary = vocabulary_of(dataset)
    assert vocabulary is not None
    assert vocabulary.size == 70_001


def test_the_vocabulary_is_known_beside_the_shards_and_after_a_new_index(
    texts: Path, tmp_path: Path
) -> None:
    out = packed(texts, tmp_path / "out")
    told = vocabulary_of(open_dataset(out))
    assert told is not None
    assert (told.size, told.end) == (10, 3)
    build_index(out, tokens="npy")
    assert vocabulary_of(open_dataset(out)) == told
    assert (out / "tokenizer.json").read_bytes() == (tmp_path / "out.json").read_bytes()


def test_the_vocabulary_is_known_at_urls_too(texts: Path, tmp_path: Path) -> None:
    out = packed(texts, tmp_path / "out")
    there = vocabulary_of(open_dataset(f"file://{out}/"))
    assert there == vocabulary_of(open_dataset(out))
    (out / "pack.json").unlink()
    assert vocabulary_of(open_dataset(f"file://{out}/")) is None
    (out / "pack.json").write_text("{}")
    with pytest.raises(DataError, match=r"pack\.json is not a report of a pack"):
        vocabulary_of(open_dataset(out))


def test_shards_of_files_have_no_vocabulary(texts: Path, tmp_path: Path) -> None:
    pack_folder(texts, tmp_path / "out")
    assert vocabulary_of(open_dataset(tmp_path / "out")) is None
    (tmp_path / "out" / "pack.json").unlink()
    assert vocabulary_of(open_dataset(tmp_path / "out")) is None


def test_the_same_pack_is_found_again_and_another_tokenizer_is_another_pack(
    texts: Path, tmp_path: Path
) -> None:
    out = packed(texts, tmp_path / "out")
    before = (out / "shard-000000.tar").stat().st_mtime_ns
    packed(texts, out)
    assert (out / "shard-000000.tar").stat().st_mtime_ns == before
    with pytest.raises(DataError, match="already contains another pack"):
        packed(texts, out, {**WORDS, "more": 10})


@pytest.mark.parametrize(
    ("words", "end", "what"),
    [
        ({"<unk>": 0, "a": 1}, None, "none of"),
        ({"<unk>": 0, "</s>": 1, "<eos>": 2}, None, "several of </s>, <eos>"),
        (WORDS, "<stop>", "no token '<stop>'"),
    ],
)
def test_the_end_has_to_be_known(
    words: dict[str, int], end: str | None, what: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=what):
        Tokeniser(tokenizer(tmp_path / "t.json", words), end)
    assert Tokeniser(tmp_path / "t.json", "<unk>").vocabulary.end == 0


def test_what_is_no_tokenizer_or_no_text_is_refused_by_name(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match=r"bad\.json is not a tokenizer"):
        Tokeniser(tmp_path / "bad.json")
    (texts / "bin.txt").write_bytes(b"\xff\xff")
    with pytest.raises(DataError, match=r"bin\.txt is not UTF-8 text"):
        packed(texts, tmp_path / "out")
    (texts / "bin.txt").unlink()
    (texts / "one.md").write_text("a")
    with pytest.raises(DataError, match=r"one\.md, one\.txt would be one sample"):
        packed(texts, tmp_path / "out")


def test_a_token_outside_the_models_vocabulary_is_named_by_shard_and_key(
    texts: Path, tmp_path: Path
) -> None:
    dataset = open_dataset(packed(texts, tmp_path / "out"))

    def first(vocab: int) -> list[PackedSequence]:
        pack = Packing(8, pad=-1, vocab=vocab)
        loader = Loader(dataset, global_batch=1, shuffle=False, pack=pack, collate=list)
        found: list[PackedSequence] = next(iter(loader)).data
        loader.close()
        return found

    assert sorted(first(vocab=10)[0].tokens.tolist()) == [1, 1, 2, 2, 3, 3, 3, 9]
    with pytest.raises(
        SampleError, match=r"'one' of .*shard-000000\.tar.*not of a vocabulary of 9"
    ):
        first(vocab=9)
