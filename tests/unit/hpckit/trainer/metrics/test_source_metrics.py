"""The losses of the sources of a mixture, from those of micro-batches to their means."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from data import MixtureChange, SourceProgress
from hpckit.events.schema import MixtureChanged, MixtureLogged
from hpckit.trainer.metrics.source_losses import SourceLosses, source_of_targets
from hpckit.trainer.metrics.source_metrics import SourceMetrics


class Sources:
    """A loader of two sources."""

    def __init__(
        self,
        weights: tuple[float, ...] = (0.75, 0.25),
        mixture_change: MixtureChange | None = None,
    ) -> None:
        self.weights, self.mixture_change = weights, mixture_change

    @property
    def sources(self) -> Sequence[SourceProgress]:
        return [
            SourceProgress(name, weight, 6, 0.5, None)
            for name, weight in zip("ab", self.weights, strict=False)
        ]


def test_losses_are_averaged_by_source_over_all_ranks() -> None:
    metrics = SourceMetrics(Sources(), torch.device("cpu"))
    losses = torch.tensor([[1.0, 3.0], [10.0, float("nan")]])
    metrics.note(losses, torch.tensor([[0, 0], [1, -1]]))
    sums = metrics.take()
    assert metrics.losses([2 * each for each in sums]) == {"a": 2.0, "b": 10.0}
    assert metrics.losses(metrics.take()) == {}


def test_a_record_says_how_far_sources_are_and_that_a_stage_began() -> None:
    loader = Sources()
    metrics = SourceMetrics(loader, torch.device("cpu"))
    (logged,) = metrics.events(3, {"a": 1.5})
    assert isinstance(logged, MixtureLogged)
    assert logged.sources == {
        "a": {"weight": 0.75, "samples": 6, "epochs": 0.5, "loss": 1.5},
        "b": {"weight": 0.25, "samples": 6, "epochs": 0.5},
    }
    loader.weights = (0.5, 0.5)
    changed, _ = metrics.events(4, {})
    assert isinstance(changed, MixtureChanged)
    assert (changed.before["a"], changed.after["a"], changed.reason) == (0.75, 0.5, "stage")
    assert len(metrics.events(5, {})) == 1


def test_weights_of_the_resume_that_begin_with_a_later_block_are_no_stage() -> None:
    change = MixtureChange(80, {"a": 0.75, "b": 0.25}, {"a": 0.5, "b": 0.5})
    loader = Sources(mixture_change=change)
    metrics = SourceMetrics(loader, torch.device("cpu"))
    kinds = []
    for step, weight in enumerate((0.75, 0.5, 0.75, 0.5)):
        loader.weights = (weight, 1 - weight)
        kinds.append([event.kind for event in metrics.events(step, {})])
    assert kinds == [["mixture"], ["mixture"], *[["mixture_changed", "mixture"]] * 2]


def test_without_a_mixture_nothing_is_told() -> None:
    metrics = SourceMetrics(Sources(()), torch.device("cpu"))
    metrics.note(torch.ones(2), torch.zeros(2, dtype=torch.int64))
    assert metrics.take() == []
    assert metrics.events(1, {}) == []


def test_losses_of_micro_batches_are_joined_and_others_are_left_out() -> None:
    collected = SourceLosses()
    sources = torch.tensor([[0, 0], [0, 1], [1, -1], [1, 1]])
    collected.begin(sources)
    collected.note(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    collected.note(torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    collected.note(torch.tensor([[9.0, 9.0]]))  # of a certificate
    found = collected.take()
    assert found is not None
    assert found[0].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert found[1] is sources or found[1].equal(sources)
    assert collected.take() is None
    collected.begin(None)
    collected.note(torch.ones(1))
    assert collected.take() is None


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (None, [[4, -1], [7, 7]]),
        (torch.tensor([[0, 1, 2], [3, 4, 5]]), [[1, -1], [4, 5]]),
    ],
)
def test_a_target_is_of_the_source_of_its_token(
    tokens: torch.Tensor | None, expected: list[list[int]]
) -> None:
    targets = torch.tensor([[9, -1], [9, 9]])
    assert source_of_targets(tokens, targets, (4, 7), -1).tolist() == expected
