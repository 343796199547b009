"""`hpckit data` on token files: what it says of them, packs of them, and refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from data import Loader, Packing, TokenFiles, open_dataset
from hpckit.cli.common.exit_status import NOT_ALL
from hpckit.cli.common.store_errors import DAMAGED
from tests.integration.cli.data_commands import document, hpckit, refused
from tests.integration.data.record_shards import write_litdata, write_mds
from tests.unit.data.token_files import write_arrow, write_flat, write_megatron

END = 60000
DOCUMENTS = [[*range(n), END] for n in (3, 9, 1, 14)]


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    return write_flat(tmp_path / "train.bin", DOCUMENTS)


def test_where_shows_the_documents_of_a_step(flat: Path) -> None:
    loader = Loader(
        open_dataset(flat, token_files=TokenFiles(end_of_text=END)),
        global_batch=2,
        pack=Packing(8),
        threads=0,
    )
    step = next(iter(loader)).keys
    words: tuple[object, ...] = ("where", flat, "--end-of-text", END)
    samples = document(*words, "--position", 0, "--global-batch", 3)["samples"]
    borders = {f"{n:012d}": sum(map(len, DOCUMENTS[:n])) * 2 for n in range(4)}
    assert all(one["offset"] == borders[one["key"]] for one in samples)
    assert {one["url"] for one in samples} == {str(flat)}
    state = {**loader.state_dict(), "position": 0}
    told = document(*words, "--state", json.dumps(state), "--global-batch", 2)
    assert {one["key"] for one in told["samples"]} == set(step)


def test_ls_and_verify(flat: Path) -> None:
    facts = document("ls", flat, "--end-of-text", END)
    assert (facts["samples"], facts["tokens"], facts["shards"]) == (4, 31, 1)
    assert len(document("ls", flat, "--block-size", 8, "--shard", 0)["listed"]) == 4
    told = hpckit("verify", flat, "--full", "--end-of-text", END)
    found = "1 shard of 62 B checked: all samples can be read; the contents of 1 shard were not"
    assert found in told.output
    assert "these files have no checksums" in told.output
    assert told.exit_code == NOT_ALL
    flat.write_bytes(flat.read_bytes()[:-1])
    refused("verify", flat, "--block-size", 8, says="not a multiple of the 2 bytes", exit_code=1)


def test_ls_and_verify_take_records_and_tables_too(tmp_path: Path) -> None:
    """And no folder of them is taken for one of tars without an index."""
    litdata, mds, lines = (tmp_path / name for name in ("litdata", "mds", "a.jsonl"))
    write_mds(mds, 5, 2)
    write_litdata(litdata, 5, 2)
    lines.write_bytes(b'{"n": 1}\n{"n": 2}\n')
    for place, samples in ((mds, 5), (litdata, 5), (lines, 2)):
        assert document("ls", place)["samples"] == samples
        assert len(document("ls", place, "--shard", 0)["listed"]) == 2
        assert hpckit("verify", place).exit_code == 0
        told = hpckit("verify", place, "--full")
        assert told.exit_code == NOT_ALL, told.output
        assert "all samples can be read; the contents of" in told.output
    lines.write_bytes(b'{"n": 1}\n{"n": \n')
    told = hpckit("verify", lines, "--full")
    assert told.exit_code == DAMAGED
    assert "record 1 at byte 9" in told.output
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(b"x"))
    refused("verify", tmp_path / "b.tar.gz", says="is compressed")


def test_a_column_of_arrow_files_is_chosen(tmp_path: Path) -> None:
    file, chosen = write_arrow(tmp_path / "train.arrow", DOCUMENTS), ("--column", "input_ids")
    assert document("ls", file, *chosen)["tokens"] == 31
    assert hpckit("verify", file, *chosen).exit_code == 0
    position = ("--position", 0, "--global-batch", 1)
    assert len(document("where", file, *chosen, *position)["samples"]) == 1
    assert document("pack", file, tmp_path / "out", *chosen)["samples"] == 4
    refused("ls", file, "--column", "text", says="text")


def test_packed_tars_hold_the_same_documents(flat: Path, tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", DOCUMENTS)
    for name, source, words in (
        ("a", flat, ("--end-of-text", END)),
        ("b", tmp_path / "x", ()),
    ):
        out = tmp_path / name
        packed = document("pack", source, out, *words)
        assert (packed["samples"], packed["vocabulary"]["size"]) == (4, END + 1)
        assert document("ls", out)["tokens"] == 31
        assert document("verify", out, "--full")["shards"][0]["problem"] is None


def test_what_is_refused(flat: Path, tmp_path: Path) -> None:
    position = ("--position", 0, "--global-batch", 2)
    refused("where", flat, *position, says="give end_of_text=TOKEN, or block_size=TOKENS")
    refused("where", tmp_path, "--end-of-text", 3, *position, says="such as train.bin")
    refused("index", flat, says="is a token file, which needs no index")
    refused("bench", flat, says="is a token file, and only shards are measured")
    refused("pack", flat, tmp_path / "out", "--suffix", ".txt", says="holds tokens: --tokenizer")
    refused("pack", flat, tmp_path / "out", "--dtype", "int", says="is not a type of tokens")
