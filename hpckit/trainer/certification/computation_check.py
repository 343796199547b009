"""The check of computations at a save step: each rank computes a micro-batch of the rank before it
again, from the same parameters, and all compare their gradients."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hpckit.events.earlier_events import EarlierEvents
from hpckit.events.schema import CheckpointCertified, Degraded, DegradedSubject, WrongComputation
from hpckit.trainer.certification.batch_exchange import exchange, problem_of, repacked
from hpckit.trainer.certification.check_schedule import due_from, history_of, least_steps
from hpckit.trainer.certification.fault_finding import (
    Computation,
    differs,
    find_faults,
    find_faults_in_band,
    is_noisy,
)
from hpckit.trainer.certification.gradient_capture import (
    CapturedGradients,
    GradientCapture,
    lack_of_capture,
)
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.parallel.collectives import (
    collective_device,
    gather_hosts,
    gather_rows,
    rows_of_rank_0,
)
from hpckit.trainer.parallel.device_mesh import data_rings
from hpckit.trainer.random_seeds import kept_generators, mix, seed_all
from hpckit.trainer.rank_setup import RankContext

log = logging.getLogger(__name__)

MOST_DIFFERENCES = 3
"""Number of differences in a row, without a check that passes between them, that end the run."""
BAND = 8.0
"""Gradients differ if they do by more than so many times the largest difference between two
computations of one rank."""
_EQUAL = 1e-9  # relative difference that is none
_NAMED = 10
_STEPS = 64

Compute = Callable[..., object]


class WrongComputationError(RuntimeError):
    """Ranks have computed different gradients from one micro-batch; the next attempt continues from
    a checkpoint before."""


class FaultyNodeError(WrongComputationError):
    """A rank computes wrongly again and again; the next generation does without its node."""


@dataclass(frozen=True)
class _Finding:
    """Ranks that were wrong, as all of them know it."""

    ranks: tuple[int, ...]
    is_named: bool
    """Whether all of `ranks` were wrong, and not just one of them."""
    is_persistent: bool
    wrong: tuple[int, int, bool]
    """Rank, shift and pass of a wrong computation."""
    right: tuple[int, int, bool]


class ComputationCheck:
    """Checks at some save steps that all ranks compute alike. Its methods are collective."""

    def __init__(self, context: RankContext, earlier: EarlierEvents) -> None:
        """Take what earlier attempts have found."""
        certify = context.cfg.checkpoint.certify
        assert certify is not None
        self._context, self._certify = context, certify
        self._rings = data_rings(context.mesh)
        past = history_of(earlier.written)
        ((passed, due, failures),) = rows_of_rank_0([[past.passed, past.due, past.failures]], 3)
        self._history = type(past)(passed, due, failures)
        self._begun = self._due = 0
        self._modules: Mapping[str, nn.Module] = {}
        self._worst = 0  # the number of the tensor whose gradients differ most
        self._compute: Compute | None = None
        self._report: Callable[[], None] | None = None
        self._tensors: tuple[Tensor, ...] = ()
        self._noted = time.perf_counter()
        self._steps = deque[float](maxlen=_STEPS)
        self._capture: GradientCapture | None = None
        self._made: tuple[int, str] = (-1, "")
        self._lack = self._lack_of_ranks()

    def begin(self, step: int, modules: Mapping[str, nn.Module]) -> None:
        """Begin an attempt that continues from `step`. Collective."""
        self._begun, self._due = step, due_from(self._history, step)
        self._modules = dict(modules)
        self._noted = time.perf_counter()
        lack = self._lack or lack_of_capture(self._modules.values())
        if any(row[0] for row in gather_rows([lack is not None])):
            self._give_up(lack or "the modules of another rank cannot be checked")

    def note(self, compute: Compute, tensors: Sequence[Tensor]) -> None:
        """Note the computation of this rank in the present step.

        Raises:
            TrainingError: another rank cannot be sent these tensors.
        """
        if (problem := problem_of(tensors)) is not None:
            raise TrainingError(f"run.note_computation was given {problem}")
        self._compute, self._tensors = compute, tuple(tensors)

    def note_step(self) -> None:
        """Note the end of a step."""
        now = time.perf_counter()
        self._steps.append(now - self._noted)
        self._noted = now

    def certify(self, step: int, report: Callable[[], None] | None = None) -> str:
        """Check the state after `step` if a check is due, and return how it was certified: "bits",
        "band", or "" if it was not.

        Args:
            report: called before each computation of a micro-batch, of which there are up to five.

        Raises:
            WrongComputationError: ranks have computed differently.
            TrainingError: they have, too often.
        """
        self._report = report
        if self._made[0] != step:
            # no computation is noted before the first step of an attempt
            is_due = self._lack is None and step > self._begun and step >= self._due
            self._made = (step, self._check(step) if is_due else "")
            self._noted = time.perf_counter()  # a check is no part of a step
        return self._made[1]

    def _check(self, step: int) -> str:
        begun_s = time.perf_counter()
        if not all(row[0] for row in gather_rows([self._compute is not None])):
            self._give_up(
                "the training function names no computation; call run.note_computation(compute, "
                "*tensors) in each step"
            )
            return ""
        if self._capture is None:
            self._capture = GradientCapture(self._modules)
        first = [self._computed(step, shift) for shift in (0, 1)]
        check_us = int(1e6 * (time.perf_counter() - begun_s))
        step_us = int(1e6 * (median(self._steps) if self._steps else 0.0))
        digests = [one.digest for one in first]
        names = _hash("\n".join(self._capture.names))
        rows = gather_rows([*digests, check_us, step_us, self._kind(), first[0].count, names])
        if len({row[4] for row in rows}) > 1:
            self._give_up("the ranks have different devices, threads or versions of torch")
            return ""
        if len({row[6] for row in rows}) > 1:
            self._give_up("the ranks have different parameters")
            return ""
        if not all(row[5] for row in rows):
            self._give_up("the named computation gives no tracked parameter a gradient")
            return ""
        how = "bits"
        if any(differs([rows[rank][:2] for rank in ring]) for ring in self._rings):
            how = self._look_closer(step, first, [row[:2] for row in rows])
        check_s, step_s = max(row[2] for row in rows) / 1e6, min(row[3] for row in rows) / 1e6
        if how == "band":
            check_s *= 2.5 if len(self._rings[0]) > 2 else 2.0  # of the second pass
        self._due = step + least_steps(self._certify, check_s, step_s)
        self._history = type(self._history)(step, self._due)
        self._context.emit_once(
            CheckpointCertified(
                step=step,
                how=how,
                tensors=len(self._capture.names),
                seconds=check_s,
                step_s=step_s,
                next_step=self._due,
            )
        )
        return how

    def _computed(self, step: int, shift: int) -> CapturedGradients:
        """Compute the micro-batch of the rank that is `shift` places before this one."""
        if self._report is not None:
            self._report()
        assert self._compute is not None
        assert self._capture is not None
        place, ring = self._place()
        owner = (place - shift) % len(ring)
        if shift == 0:
            tensors = repacked(self._tensors)
        else:
            tensors = exchange(self._tensors, ring[(place + shift) % len(ring)], ring[owner])
        compute = self._compute
        with kept_generators(), torch.enable_grad():
            seed_all(mix(self._context.cfg.train.seed, "computation check", step, owner))
            return self._capture.take(lambda: compute(*tensors))

    def _look_closer(
        self, step: int, first: Sequence[CapturedGradients], digests: Sequence[Sequence[int]]
    ) -> str:
        """Compute all once more, and a third micro-batch where there is a third rank, and return
        "band" if the differences are those of kernels that are not deterministic.

        Raises:
            WrongComputationError, TrainingError: a rank is wrong.
        """
        shifts = range(3 if len(self._rings[0]) > 2 else 2)
        again = [self._computed(step, shift) for shift in shifts]
        more = gather_rows([one.digest for one in again])
        found: list[_Finding] = []
        tables = [
            ([digests[rank] for rank in ring], [more[rank] for rank in ring])
            for ring in self._rings
        ]
        if any(is_noisy(*table) for table in tables):
            exceeds = self._exceeding(first, again)
            tensors = [self._names()[self._worst]]
            for ring in self._rings:
                for places in find_faults_in_band([exceeds[rank] for rank in ring]):
                    ranks = tuple(ring[place] for place in places)
                    one = (ranks[0], 0, False)
                    found.append(_Finding(ranks, len(places) == 1, True, one, one))
            if not found:
                return "band"
        else:
            for ring, table in zip(self._rings, tables, strict=True):
                for fault in find_faults(*table):
                    ranks = tuple(ring[place] for place in fault.places)
                    found.append(
                        _Finding(
                            ranks,
                            len(ranks) == 1,
                            fault.is_persistent,
                            _at(fault.wrong, ring),
                            _at(fault.right, ring),
                        )
                    )
            tensors = self._differing(found[0], first, again)
        self._end(step, found, tensors)
        return ""

    def _differing(
        self,
        found: _Finding,
        first: Sequence[CapturedGradients],
        again: Sequence[CapturedGradients],
    ) -> list[str]:
        """Return the names of the parameters whose gradients differ in the computations of
        `found`."""
        names, prints = self._names(), []
        for rank, shift, is_repeated in (found.wrong, found.right):
            mine = (again if is_repeated else first)[shift if rank == dist.get_rank() else 0]
            sent = mine.fingerprints.to(collective_device(), copy=True)
            dist.broadcast(sent, rank)
            prints.append(sent.cpu())
        return [names[n] for n in torch.nonzero(prints[0] != prints[1]).flatten().tolist()]

    def _exceeding(
        self, first: Sequence[CapturedGradients], again: Sequence[CapturedGradients]
    ) -> list[bool]:
        """Return for each rank whether its gradients of another one's micro-batch are outside the
        band around those of their owner."""
        device = collective_device()
        pairs = [(a.figures, b.figures) for a, b in zip(first, again, strict=False)]
        spreads = torch.stack([relative_difference(a, b) for a, b in pairs])
        # a value that overflows in one of the two computations is no measure of how others differ
        spread = torch.where(spreads.isfinite(), spreads, 0.0).amax(0).to(device)
        dist.all_reduce(spread, op=dist.ReduceOp.MAX)
        place, ring = self._place()
        own, theirs = (_mean(a, b) for a, b in pairs)
        (owners,) = exchange([own], ring[(place + 1) % len(ring)], ring[place - 1])
        band = (BAND * spread.cpu()).clamp(min=_EQUAL)
        excess = relative_difference(owners, theirs) - band
        self._worst = int(excess.argmax()) if excess.numel() else 0
        rows = gather_rows([bool((excess > 0).any()), self._worst])
        self._worst = next((row[1] for row in rows if row[0]), self._worst)
        return [bool(row[0]) for row in rows]

    def _end(self, step: int, found: Sequence[_Finding], tensors: Sequence[str]) -> None:
        """End the attempt.

        Raises:
            WrongComputationError, TrainingError: always.
        """
        ranks = sorted({rank for one in found for rank in one.ranks})
        where = _places(self._context.env.at.node)
        is_persistent = any(one.is_persistent for one in found)
        nodes = sorted({where[rank][0] for rank in ranks})
        is_excluded = is_persistent and (len(nodes) == 1 or all(one.is_named for one in found))
        passed = self._history.passed
        good_step = passed if 0 <= passed <= step else self._begun
        what = describe(found, [where[rank][1] for rank in ranks], tensors, step)
        self._context.emit_once(
            WrongComputation(
                step=step,
                good_step=good_step,
                ranks=ranks,
                hosts=[where[rank][1] for rank in ranks],
                nodes=[where[rank][0] for rank in ranks],
                tensors=list(tensors[:_NAMED]),
                is_persistent=is_persistent,
                is_excluded=is_excluded,
                what=what,
            )
        )
        # agents end the other ranks once one has failed, and the next attempt needs this event
        dist.barrier()
        # first, as a program that is not deterministic would have one node after another excluded
        if self._history.failures + 1 >= MOST_DIFFERENCES:
            raise TrainingError(
                f"{what}; the ranks have computed differently {MOST_DIFFERENCES} times in a row. "
                "Measure the nodes (hpckit health), or set checkpoint.certify=null"
            )
        if is_excluded:
            raise FaultyNodeError(f"{what}; the run continues without it from step {good_step}")
        raise WrongComputationError(f"{what}; the run continues from step {good_step}")

    def _place(self) -> tuple[int, list[int]]:
        rank = dist.get_rank()
        ring = next(one for one in self._rings if rank in one)
        return ring.index(rank), ring

    def _names(self) -> list[str]:
        assert self._capture is not None
        return self._capture.names

    def _kind(self) -> int:
        """Return a hash of what decides about the bits of a result, besides the program."""
        device = self._context.device
        if device.type == "cuda":
            words = [torch.cuda.get_device_name(device), torch.version.cuda]
        else:
            words = [torch.backends.cpu.get_cpu_capability(), str(torch.get_num_threads())]
        return _hash(" ".join(map(str, (torch.__version__, *words))))

    def _lack_of_ranks(self) -> str | None:
        if len(self._rings[0]) < 2:
            return "no two ranks have the same part of the model"
        return None

    def _give_up(self, why: str) -> None:
        self._lack = why
        self._degrade(why)

    def _degrade(self, why: str) -> None:
        what = f"no checkpoint is certified (checkpoint.certify): {why}"
        log.warning("%s", what)
        self._context.emit_once(Degraded(subject=DegradedSubject.CERTIFICATION, what=what))


def relative_difference(one: Tensor, other: Tensor) -> Tensor:
    """Return the larger of the differences between norms and between projections, relative to the
    norm: (parameters,). It is 0 where both are not finite, as after an overflow in fp16, and
    infinite where one of them is.

    Args:
        one, other: as `CapturedGradients.figures`.
    """
    is_finite, other_is_finite = one.isfinite().all(1), other.isfinite().all(1)
    scale = torch.maximum(one[:, 0], other[:, 0]).clamp(min=torch.finfo(torch.float64).tiny)
    found = (one - other).abs().amax(1) / scale
    found = torch.where(is_finite & other_is_finite, found, math.inf)
    return torch.where(is_finite | other_is_finite, found, 0.0)


def _mean(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean of two computations, of which one counts alone where the other overflows."""
    found = torch.where(other.isfinite(), (one + other) / 2, one)
    return torch.where(one.isfinite(), found, other)


def describe(
    found: Sequence[_Finding], hosts: Sequence[str], tensors: Sequence[str], step: int
) -> str:
    """Describe what was found in one sentence."""
    ranks = sorted({rank for one in found for rank in one.ranks})
    many = "ranks" if len(ranks) > 1 else "rank"
    who = f"{many} {', '.join(map(str, ranks))} ({', '.join(sorted(set(hosts)))})"
    if not all(one.is_named for one in found):
        who = f"one of {who}"
    first = ", ".join(tensors[:3])
    more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
    again = "and again when they were computed once more: a persistent error"
    if not any(one.is_persistent for one in found):
        again = "and right ones when they were computed once more: a transient error"
    return f"{who} computed wrong gradients after step {step}, of {first}{more}, {again}"


def _hash(text: str) -> int:
    """Return a hash that fits into an int64."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def _at(one: Computation, ring: Sequence[int]) -> tuple[int, int, bool]:
    return ring[one.place], one.shift, one.is_repeated


def _places(node: int) -> list[tuple[int, str]]:
    """Return the number and the name of each rank's node. Collective."""
    numbers = [number for (number,) in gather_rows([node])]
    return list(zip(numbers, gather_hosts(), strict=True))
