"""Windows of several documents: what is predicted, and that documents do not see each other."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from data import Loader, PackedSequence, Packing, ShardWriter, open_dataset
from data.order.document_boundaries import boundaries
from data.read.sequences.packed_sequences import sequences
from hpckit.config.spec import DecoderSpec
from hpckit.trainer.batches.byte_text import PADDING
from hpckit.trainer.batches.token_windows import (
    TokenWindows,
    count_of,
    next_token_batch,
    stack_contiguous,
    stack_offsets,
    stack_separated,
)
from hpckit.trainer.models.document_mask import (
    DocumentMask,
    attend,
    document_mask,
    positions_within,
)
from hpckit.trainer.models.model_builder import make
from hpckit.trainer.models.unembedding import token_losses
from tests.unit.hpckit.trainer.models.test_decoders import gpt, llama


def window(*documents: list[int], length: int) -> PackedSequence:
    tokens = np.full(length, PADDING, dtype=np.int64)
    flat = np.concatenate([np.array(one) for one in documents])
    tokens[: len(flat)] = flat
    return PackedSequence(tokens, boundaries([len(one) for one in documents], length))


def test_no_token_predicts_the_first_one_of_a_document_that_it_does_not_see() -> None:
    apart = next_token_batch(stack_separated([window([5, 6, 7], [8, 9], length=7)]))
    assert apart.inputs.tolist() == [[5, 6, 7, 8, 9, 0]]
    assert apart.targets.tolist() == [[6, 7, PADDING, 9, PADDING, PADDING]]
    assert apart.documents is not None
    assert apart.documents.tolist() == [[0, 0, 0, 1, 1, -1]]
    running = next_token_batch(stack_contiguous([window([5, 6, 7], [8, 9], length=7)]))
    assert running.targets.tolist() == [[6, 7, 8, 9, PADDING, PADDING]]
    assert [int(count_of(some.targets)) for some in (apart, running)] == [3, 4]
    assert running.documents is None


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_tokens_look_at_those_before_them_in_their_document(sizes: list[int]) -> None:
    ids = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[None]
    found = document_mask(positions_within(ids), torch.float32)
    places = [place for size in sizes for place in range(size)]
    assert found.positions.tolist() == [places]
    assert found.mask is not None
    document, mask = ids[0].tolist(), found.mask[0, 0].tolist()
    for i in range(len(document)):
        seen = [j <= i and document[j] == document[i] for j in range(len(document))]
        assert mask[i] == [0.0 if sees else -math.inf for sees in seen]


@pytest.mark.parametrize("size", [gpt(), llama()], ids=["gpt", "llama"])
def test_a_document_in_a_window_has_the_losses_that_it_has_alone(size: DecoderSpec) -> None:
    model = make(size, seed=3)
    random = torch.Generator().manual_seed(5)
    lengths = [5, 7, 4]
    documents = [torch.randint(0, size.vocab, (n,), generator=random).tolist() for n in lengths]
    given = next_token_batch(stack_separated([window(*documents, length=size.seq_len + 1)]))
    together = model(*given)
    alone = [_losses(model, torch.tensor([one])) for one in documents]
    expected = torch.cat(alone, dim=1)
    found = together[given.targets != PADDING][None]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    seen = model(given.inputs, given.targets)[given.targets != PADDING][None]
    assert not torch.allclose(seen, expected, rtol=1e-3), "without boundaries they differ"


@pytest.mark.parametrize("size", [gpt(), llama()], ids=["gpt", "llama"])
def test_attention_by_offsets_is_that_of_each_document_alone(size: DecoderSpec) -> None:
    """Losses and gradients, over micro-batches of windows with and without padding, of different
    numbers of documents, compared with each document alone and with the mask."""
    model, random = make(size, seed=3), torch.Generator().manual_seed(5)
    length = size.seq_len + 1
    windows = [
        [torch.randint(0, size.vocab, (n,), generator=random).tolist() for n in lengths]
        for lengths in ([5, 7, 4], [length], [1, 2, 1, 20, length - 24])
    ]
    packed = [window(*documents, length=length) for documents in windows]
    given = next_token_batch(stack_offsets(packed))
    assert given.documents is not None
    assert given.documents.shape == (3, 8), "a power of two"
    masked = _with_gradients(model, *next_token_batch(stack_separated(packed)))
    model.window = size.seq_len
    found = _with_gradients(model, *given)
    real = given.targets != PADDING
    torch.testing.assert_close(found[0][real], masked[0][real], rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(found[1], masked[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    micro_batches = zip(*(each.chunk(3) for each in given if each is not None), strict=True)
    for row, (documents, micro_batch) in enumerate(zip(windows, micro_batches, strict=True)):
        model.window = size.seq_len
        alone = model(*micro_batch)
        torch.testing.assert_close(alone[0], found[0][row], rtol=1e-5, atol=1e-6)
        model.window = None
        expected = [_losses(model, torch.tensor([one])) for one in documents if len(one) > 1]
        of_documents = alone[0][given.targets[row] != PADDING]
        torch.testing.assert_close(
            of_documents, torch.cat(expected, dim=1)[0], rtol=1e-5, atol=1e-6
        )


def test_the_document_ids_and_offsets_of_a_batch_are_those_of_flex_and_varlen_attention() -> None:
    """Attention over packed documents by a block mask, and by `cu_seqlens`, is that of each
    document alone."""
    packed = [window([1] * 5, [2] * 2, length=9), window([3] * 9, length=9)]
    batch = sequences(packed)
    random = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, 2, 4, 9, 16, generator=random).unbind()
    ids = torch.from_numpy(batch.document_ids)

    def visible(sequence: Tensor, _: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (ids[sequence, i] == ids[sequence, j])

    mask = create_block_mask(visible, 2, None, 9, 9, device="cpu")
    by_mask = flex_attention(query, key, value, block_mask=mask)
    offsets = torch.from_numpy(batch.cu_seqlens)
    by_offsets = attend(query, key, value, DocumentMask(None, ids, offsets))
    for row, begin, end in ((0, 0, 5), (0, 5, 7), (1, 0, 9)):
        parts = [each[row : row + 1, :, begin:end] for each in (query, key, value)]
        alone = scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)[0]
        assert isinstance(by_mask, Tensor)
        torch.testing.assert_close(by_mask[row, :, begin:end], alone, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(by_offsets[row, :, begin:end], alone, rtol=1e-5, atol=1e-6)
    assert batch.max_seqlen == 9


def _with_gradients(
    model: torch.nn.Module, inputs: Tensor, targets: Tensor, documents: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    losses = model(inputs, targets, documents)
    losses.sum().backward()
    return losses.detach(), [
        part.grad.clone() for part in model.parameters() if part.grad is not None
    ]


def _losses(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    return token_losses(model(tokens[:, :-1]), tokens[:, 1:])


def test_a_window_as_one_document_is_as_without_documents() -> None:
    size = gpt()
    tokens = torch.randint(0, size.vocab, (2, size.seq_len + 1))
    model = make(size, seed=3)
    masked = model(*next_token_batch(TokenWindows(tokens, torch.zeros_like(tokens))))
    torch.testing.assert_close(masked, model(*next_token_batch(TokenWindows(tokens, None))))


def test_a_loader_makes_them_of_shards_of_tokens(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shard-%06d.tar", tokens="bin:uint16") as writer:
        for number, count in enumerate((3, 9, 2)):
            content = (np.arange(count) + 10 * number).astype(np.uint16).tobytes()
            writer.write({"__key__": f"{number}", "bin": content})
    loader = Loader(
        open_dataset(tmp_path),
        global_batch=2,
        shuffle=False,
        pack=Packing(8, pad=PADDING, vocab=100),
        collate=stack_separated,
    )
    batch: TokenWindows = next(iter(loader)).data
    loader.close()
    kept = sorted(batch.tokens[batch.tokens != PADDING].tolist())
    assert kept == [0, 1, 2, *range(10, 19), 20, 21]
