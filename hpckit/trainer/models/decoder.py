"""The base class of decoder-only transformers, which compute logits or losses from tokens, as whole
models or as pipeline stages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hpckit.trainer.models.base_model import Model
from hpckit.trainer.models.document_mask import (
    DocumentMask,
    document_mask,
    document_offsets,
    positions_within,
)
from hpckit.trainer.models.unembedding import Unembedding

INIT_STD = 0.02
"""Standard deviation of initialized weights (GPT-2, Llama)."""
LORA_A, LORA_B = "lora_a", "lora_b"
"""Names of the parameters of a linear layer's adapter: (rank, inputs) and (outputs, rank)."""


@dataclass(frozen=True)
class LayerRange:
    """The range of blocks from `begin` up to `end` of a model of `layers` blocks, with the
    embedding if it includes the first and the output layer if it includes the last."""

    begin: int
    end: int
    layers: int

    @classmethod
    def whole(cls, layers: int) -> LayerRange:
        return cls(0, layers, layers)

    @property
    def is_first(self) -> bool:
        return self.begin == 0

    @property
    def is_last(self) -> bool:
        return self.end == self.layers


class DecoderModel(Model):
    """A decoder or a pipeline stage of one, whose parameters have the same names in both.

    Subclasses define `embed`, which only the first stage needs, and `predict`, which only the last
    one needs.
    """

    COLUMNS: tuple[str, ...]
    """Layers of a block whose outputs tensor parallelism shards."""
    ROWS: tuple[str, ...]
    """Layers of a block whose inputs tensor parallelism shards, and whose outputs it sums over
    ranks."""
    RESIDUAL: tuple[str, ...]
    """Layers of a block that write into the residual stream."""

    unembedding: Unembedding
    """The output layer, which only the last part has."""

    def __init__(self, part: LayerRange, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.window: int | None = None
        """The tokens of a window whose documents are given by their offsets, so that attention
        computes each of them alone; None: documents are given by their numbers, and masked."""
        self.part = part
        numbers = range(part.begin, part.end)
        self.blocks = nn.ModuleDict(
            {str(number): block for number, block in zip(numbers, blocks, strict=True)}
        )

    @property
    def tied(self) -> Tensor | None:
        """Return the parameter that the first and the last stage share; None if there is none."""
        return None

    def embed(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        """Return the embedding (batch, time, width) of `tokens`, (batch, time) integers.

        Args:
            positions: (batch, time) integers; None: positions are counted from 0.
        """
        raise NotImplementedError

    def predict(self, x: Tensor, targets: Tensor | None) -> Tensor:
        """Return the output of `Unembedding` for the features `x`, (batch, time, width)."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, targets: Tensor | None = None, documents: Tensor | None = None
    ) -> Tensor:
        """Compute the model or the pipeline stage.

        Args:
            x: tokens (batch, time), or the output of the previous stage.
            targets: (batch, time) next tokens.
            documents: (batch, time) numbers of documents. Tokens attend only to tokens of the same
                document, which are contiguous. None: tokens attend to all tokens before them. With
                `window`, (batch, documents + 1) offsets, as of `document_offsets`.

        Returns:
            Logits (batch, time, vocab); with targets, their losses (batch, time); or the input of
            the next stage, (batch, time, width).
        """
        mask = None
        if documents is not None and self.window is not None:
            mask = document_offsets(documents, self.window)
        elif documents is not None:
            mask = DocumentMask(None, positions_within(documents))
        if self.part.is_first:
            x = self.embed(x, None if mask is None else mask.positions)
        if mask is not None and mask.offsets is None:
            mask = document_mask(mask.positions, x.dtype)
        for block in self.blocks.values():
            x = block(x) if mask is None else block(x, mask)
        return self.predict(x, targets) if self.part.is_last else x

    @torch.no_grad()
    def initialize_tensor(self, name: str, tensor: Tensor, generator: torch.Generator) -> None:
        """Initialize a whole parameter by its name.

        Gains are one, biases are zero, and weights are normal. The layers that write into the
        residual stream are scaled by 1/sqrt(2 x layers), so that its variance does not grow with
        depth (Radford et al. 2019, section 2.3). Adapters add nothing at first: B is zero, and A is
        initialized as in the code of Hu et al. 2021.
        """
        if name.endswith((".bias", ".load", LORA_B)):
            tensor.zero_()
        elif name.endswith(LORA_A):
            nn.init.kaiming_uniform_(tensor, a=math.sqrt(5), generator=generator)
        elif "norm" in name:
            tensor.fill_(1.0)
        else:
            is_residual = name.removesuffix(".weight").endswith(self.RESIDUAL)
            std = INIT_STD / math.sqrt(2 * self.part.layers) if is_residual else INIT_STD
            tensor.normal_(0.0, std, generator=generator)
