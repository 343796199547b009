"""The mixture of a run's datasets: its rules, and its weights by position, as pure functions of the
spec and of the sizes of the datasets."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from hpckit.config.batch_size import samples_before
from hpckit.config.entry_points import LANGUAGE_MODEL, is_built_in, is_training_function
from hpckit.config.spec import DecoderSpec, MixtureSourceSpec, MixtureSpec, RunSpec

if TYPE_CHECKING:
    from data.order.mixture import MixtureSegment

KEY = "data.mixture"
_FIXED = ("shards", "dtype", "end_of_text", "column")
"""Keys of a source that cannot change when a run resumes: they say which samples it has."""


class SourceSize(NamedTuple):
    """The size of a dataset of a mixture."""

    samples: int
    tokens: int | None
    """None: they were not counted."""

    @property
    def mean_tokens(self) -> Fraction:
        """Tokens of a sample, on average."""
        return Fraction(self.tokens or 0, self.samples)


class PlannedStage(NamedTuple):
    """The shares of the samples of each source from a position of the stream on, up to a factor."""

    position: int
    weights: tuple[Fraction, ...]


class SourcePlan(NamedTuple):
    """What a run is expected to take of one source."""

    samples: float
    epochs: float


def dataset_violations(spec: RunSpec) -> Iterator[str]:
    """Yields what is wrong with the datasets that a spec names, one line each, the key first."""
    data = spec.data
    if not is_training_function(spec):
        return
    if data.mixture is None:
        if data.shards is None:
            yield f"data.shards: is required, or {KEY}, which data=mixture has"
        return
    if data.shards is not None:
        yield f"data.shards: must be null with {KEY}, which names the datasets"
    if data.grow != "refuse":
        yield (
            f"data.grow: must be refuse with {KEY}, whose sources keep their shards; add new "
            "shards as a source of their own when the run resumes"
        )
    if data.pack is not None:
        yield f"data.pack: must be null with {KEY}, whose shards have to exist"
    yield from _source_violations(spec, data.mixture)
    yield from _stage_violations(data.mixture)
    if is_built_in(spec):
        yield from _unit_violations(spec, data.mixture)


def source_keys(name: str) -> str:
    """Returns the prefix of the keys of a source."""
    return f"{KEY}.sources.{name}"


def options_of(spec: RunSpec, source: MixtureSourceSpec) -> RunSpec:
    """Returns the spec with the options of token files that a source has: its own, and those of
    `data` that files of its kind take.

    Raises:
        DataError: the shards cannot be listed.
    """
    options: dict[str, Any] = {name: getattr(source, name) for name in _FIXED[1:]}
    inherited = {
        name: value
        for name, own in options.items()
        if own is None and (value := getattr(spec.data, name)) is not None
    }
    if inherited and spec.data.text == "tokens":
        from data.index.token_files.token_file_listing import options_taken  # takes numpy

        taken = options_taken(source.shards)
        inherited = {name: value for name, value in inherited.items() if name in taken}
    return replace(spec, data=replace(spec.data, **{**options, **inherited}))


def stages(spec: RunSpec, sizes: Sequence[SourceSize]) -> list[PlannedStage]:
    """Returns the weights of the sources by position, the first from 0 on.

    A weight by tokens is converted to one by samples by the mean number of tokens of the source's
    samples. If documents are packed, so is the beginning of a stage, from the number of tokens
    before it; of a step, those are the tokens of its full sequences.

    Args:
        sizes: the size of each source, in the order of the spec.

    Raises:
        ValueError: two stages begin at the same position, or sizes have no tokens.
    """
    mixture = spec.data.mixture
    assert mixture is not None
    names = list(mixture.sources)
    found = [PlannedStage(0, _by_samples(mixture, _first_weights(mixture), sizes))]
    at_tokens = Fraction(0)
    for number, stage in enumerate(mixture.stages):
        weights = [stage.weights.get(name, 0.0) for name in names]
        begin, tokens = _begin(spec, found[-1], at_tokens, stage.step, stage.tokens, sizes)
        if begin <= found[-1].position:
            raise ValueError(
                f"{KEY}.stages: number {number + 1} begins at sample {begin} of the stream, where "
                "the one before has not begun or just begins; give them more distance"
            )
        found.append(PlannedStage(begin, _by_samples(mixture, weights, sizes)))
        at_tokens = tokens
    return found


def stages_from(
    spec: RunSpec, sizes: Sequence[SourceSize], before: Sequence[MixtureSegment], position: int
) -> list[PlannedStage]:
    """Returns the weights of the sources from `position` on, where a run continues that has read
    its sources by the weights `before` until there: the first is in force at `position`, and the
    later ones begin after as many steps or tokens as `stages` says, all of the run counted.

    Args:
        before: the weights in force at the positions up to there, by samples.

    Raises:
        ValueError: as `stages`.
    """
    mixture = spec.data.mixture
    assert mixture is not None
    done = Fraction(0)
    ends = [*(part.position for part in before[1:]), position]
    for part, end in zip(before, ends, strict=True):
        rate = _tokens_per_sample(_exact(part), sizes)
        done += rate * max(0, min(end, position) - part.position)
    here = PlannedStage(position, _by_samples(mixture, _first_weights(mixture), sizes))
    later = list[PlannedStage]()
    for stage in mixture.stages:
        weights = [stage.weights.get(name, 0.0) for name in mixture.sources]
        now = later[-1] if later else here
        begin, tokens = _begin(spec, _whole(now), done, stage.step, stage.tokens, sizes)
        found = PlannedStage(begin, _by_samples(mixture, weights, sizes))
        if begin <= position:
            here = found._replace(position=position)
            continue
        if later and begin <= now.position:  # both begin within the same sample
            later.pop()
        later.append(found)
        done = tokens
    return [here, *later]


def _exact(part: MixtureSegment) -> PlannedStage:
    return PlannedStage(part.position, tuple(map(Fraction, part.parts)))


def _whole(stage: PlannedStage) -> PlannedStage:
    """Returns a stage by the weights that a state keeps of it, so that a later resume, which knows
    only them, finds the same positions."""
    from data.order.mixture import segment  # takes numpy, which `launch` needs only for this

    return _exact(segment(stage.position, stage.weights))


def end_position(spec: RunSpec, plan: Sequence[PlannedStage], sizes: Sequence[SourceSize]) -> int:
    """Returns about the position of the stream at which the last step ends: an upper limit, as
    padding is not counted."""
    steps = spec.train.steps
    if not is_packed(spec):
        return samples_before(spec, steps)
    at_tokens, need = Fraction(0), tokens_before(spec, steps)
    for stage, later in pairwise([*plan, None]):
        assert stage is not None
        rate = _tokens_per_sample(stage, sizes)
        end = stage.position + int((need - at_tokens) / rate)
        if later is None or end <= later.position:
            return end
        at_tokens += rate * (later.position - stage.position)
    raise AssertionError


def shares(plan: Sequence[PlannedStage], end: int) -> list[float]:
    """Returns how many of the first `end` samples are of each source, by its shares: up to the end
    of a block, the samples themselves may be others of the block."""
    found = [Fraction(0)] * len(plan[0].weights)
    for stage, later in pairwise([*plan, None]):
        assert stage is not None
        last = end if later is None else min(end, later.position)
        count = Fraction(max(0, last - stage.position)) / sum(stage.weights)
        found = [have + count * weight for have, weight in zip(found, stage.weights, strict=True)]
    return [float(count) for count in found]


def source_plans(
    spec: RunSpec, consumed: Sequence[float], sizes: Sequence[SourceSize]
) -> tuple[dict[str, SourcePlan], list[str]]:
    """Returns what the run takes of each source, by name, and the problems: it would take more than
    budgets and epochs allow.

    Args:
        consumed: samples of each source that all steps of the run take, by `shares`.
    """
    mixture = spec.data.mixture
    assert mixture is not None
    plans, problems = {}, []
    for (name, source), count, size in zip(mixture.sources.items(), consumed, sizes, strict=True):
        plans[name] = SourcePlan(count, count / size.samples)
        have, what = _amount(mixture, size)
        most_epochs = source.epochs or (1.0 if source.budget is not None else None)
        if source.budget is not None and most_epochs and source.budget > have * most_epochs:
            problems.append(
                f"{source_keys(name)}.budget: {source.budget:,} {what} are more than the {have:,} "
                f"that {source.shards} has; to read it {source.budget / have:.2f} times, set "
                f"{source_keys(name)}.epochs"
            )
        elif most_epochs and count > _with_slack(mixture, size.samples * most_epochs):
            problems.append(
                f"{source_keys(name)}: {spec.train.steps} steps read it {count / size.samples:.2f} "
                f"times, and it may be read {most_epochs:g} times; use fewer steps, a smaller "
                "share, or more epochs"
            )
        elif source.budget is not None and count > _with_slack(
            mixture, _samples_of(mixture, source.budget, size)
        ):
            taken = int(count * (1 if mixture.unit == "samples" else size.mean_tokens))
            problems.append(
                f"{source_keys(name)}.budget: {spec.train.steps} steps take {taken:,} {what}, more "
                f"than {source.budget:,}; use fewer steps, or larger budgets"
            )
    return plans, problems


def is_packed(spec: RunSpec) -> bool:
    """Returns whether hpckit's own training function packs documents of tokens."""
    return spec.entry == LANGUAGE_MODEL and spec.data.text == "tokens"


def change_problems(before: MixtureSpec, after: MixtureSpec) -> list[str]:
    """Returns why a run cannot continue with another mixture; empty if it can: by other weights,
    budgets, epochs and stages, and with more sources. Pure."""
    found = []
    for name, source in before.sources.items():
        now = after.sources.get(name)
        if now is None:
            found.append(
                f"{source_keys(name)}: the run has read it, and its place in it is kept; keep the "
                "source with weight=0 to read no more of it"
            )
            continue
        for field in _FIXED:
            if (was := getattr(source, field)) != (new := getattr(now, field)):
                found.append(
                    f"{source_keys(name)}.{field}: cannot change from {was} to {new} while the run "
                    "continues; add a source under another name, and give this one weight=0"
                )
    if before.block != after.block:
        found.append(f"{KEY}.block: cannot change from {before.block} to {after.block}")
    return found


def _first_weights(mixture: MixtureSpec) -> list[float]:
    return [
        float(source.budget if source.budget is not None else source.weight or 0)
        for source in mixture.sources.values()
    ]


def _by_samples(
    mixture: MixtureSpec, weights: Sequence[float], sizes: Sequence[SourceSize]
) -> tuple[Fraction, ...]:
    exact = [Fraction(weight) for weight in weights]
    if mixture.unit == "samples":
        return tuple(exact)
    for name, size in zip(mixture.sources, sizes, strict=True):
        if not size.tokens:
            raise ValueError(
                f"{source_keys(name)}.shards: has no token counts, by which {KEY}.unit=tokens "
                "weighs; `hpckit data index --tokens` counts them, or use unit=samples"
            )
    return tuple(w / size.mean_tokens for w, size in zip(exact, sizes, strict=True))


def _begin(
    spec: RunSpec,
    before: PlannedStage,
    at_tokens: Fraction,
    step: int | None,
    tokens: int | None,
    sizes: Sequence[SourceSize],
) -> tuple[int, Fraction]:
    """Returns the position at which a stage begins, and the tokens before it."""
    if step is not None and not is_packed(spec):
        return samples_before(spec, step), Fraction(0)
    need = Fraction(tokens) if tokens is not None else tokens_before(spec, step or 0)
    rate = _tokens_per_sample(before, sizes)
    if not rate:
        raise ValueError(f"{KEY}.stages: the sources have no token counts, which a stage needs")
    ahead = -(-(need - at_tokens) // rate)
    return before.position + int(ahead), at_tokens + ahead * rate


def tokens_before(spec: RunSpec, step: int) -> Fraction:
    """Returns about the tokens of the first `step` steps where documents are packed: those of full
    windows."""
    assert isinstance(spec.model, DecoderSpec)
    return Fraction(samples_before(spec, step) * (spec.model.seq_len + 1))


def _tokens_per_sample(stage: PlannedStage, sizes: Sequence[SourceSize]) -> Fraction:
    each = zip(stage.weights, sizes, strict=True)
    return sum((w * size.mean_tokens for w, size in each), Fraction(0)) / sum(stage.weights)


def _amount(mixture: MixtureSpec, size: SourceSize) -> tuple[int, str]:
    return (size.samples if mixture.unit == "samples" else size.tokens or 0), mixture.unit


def _samples_of(mixture: MixtureSpec, budget: int, size: SourceSize) -> float:
    return budget if mixture.unit == "samples" else float(budget / size.mean_tokens)


def _with_slack(mixture: MixtureSpec, samples: float) -> float:
    """Returns how many samples may be planned where so many are allowed: what the run takes is
    known up to the padding of packed documents, and up to a block."""
    return samples + min(mixture.block, 1 + samples / 50)


def _source_violations(spec: RunSpec, mixture: MixtureSpec) -> Iterator[str]:
    if not mixture.sources:
        yield f"{KEY}.sources: is empty; name at least one, as {{web: {{shards: ..., weight: 1}}}}"
        return
    budgets = [name for name, source in mixture.sources.items() if source.budget is not None]
    for name, source in mixture.sources.items():
        key = source_keys(name)
        if (source.weight is None) == (source.budget is None):
            what = "neither a weight nor a" if source.weight is None else "both a weight and a"
            yield f"{key}: has {what} budget; give it one of them"
        elif budgets and source.budget is None:
            yield f"{key}.weight: {budgets[0]} has a budget; give budgets to all sources, or none"
        elif source.weight == 0 and not _may_be_paused(spec, mixture, name):
            yield (
                f"{key}.weight: must be more than 0, as no stage gives it more: the source would "
                "never be read; leave it out"
            )
    if not budgets and all(source.weight == 0 for source in mixture.sources.values()):
        yield f"{KEY}.sources: all weights are 0; one has to be more"
    if budgets and mixture.stages:
        yield (
            f"{KEY}.stages: a curriculum changes weights, and {source_keys(budgets[0])} has a "
            "budget for the whole run; give weights in place of budgets"
        )
    places: dict[str, str] = {}
    for name, source in mixture.sources.items():
        if (other := places.setdefault(source.shards, name)) != name:
            yield f"{source_keys(name)}.shards: are those of {other}; name them once"


def _may_be_paused(spec: RunSpec, mixture: MixtureSpec, name: str) -> bool:
    """Returns whether a source of weight 0 is read by a stage, or may have been read before the run
    resumed or was forked: it cannot be left out then."""
    is_continued = spec.data.identity_mixture is not None
    return is_continued or any(stage.weights.get(name) for stage in mixture.stages)


def _stage_violations(mixture: MixtureSpec) -> Iterator[str]:
    for number, stage in enumerate(mixture.stages):
        key = f"{KEY}.stages[{number}]"
        if (stage.step is None) == (stage.tokens is None):
            what = "neither step nor" if stage.step is None else "both step and"
            yield f"{key}: has {what} tokens; give one of them, the point from which it is used"
        for name in stage.weights:
            if name not in mixture.sources:
                yield f"{key}.weights.{name}: {_unknown(name, mixture.sources)}"
        if not any(stage.weights.values()):
            yield f"{key}.weights: all are 0; one has to be more"
    for earlier, later in pairwise(mixture.stages):
        if (earlier.step is None) != (later.step is None):
            yield f"{KEY}.stages: some begin at steps and some at tokens; use one of them for all"
        elif (earlier.step or earlier.tokens or 0) >= (later.step or later.tokens or 0):
            at = later.step or later.tokens
            yield f"{KEY}.stages: must begin one after the other; {at} is not after the one before"


def _unknown(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    advice = f"did you mean {near[0]}?" if near else f"the sources are {', '.join(known)}"
    return f"there is no such source; {advice}"


def _unit_violations(spec: RunSpec, mixture: MixtureSpec) -> Iterator[str]:
    if not is_packed(spec):
        what = "images" if spec.data.images is not None else "bytes"
        if mixture.unit == "tokens":
            yield f"{KEY}.unit: samples of {what} have no tokens that are counted; use unit=samples"
        if any(stage.tokens is not None for stage in mixture.stages):
            yield f"{KEY}.stages: samples of {what} have no tokens that are counted; use step"
        for name, source in mixture.sources.items():
            no_tokens = ("dtype", "end_of_text")
            for field in (*no_tokens, "column") if what == "images" else no_tokens:
                if (value := getattr(source, field)) is not None:
                    yield (
                        f"{source_keys(name)}.{field}: {value} is an option of token files; use "
                        "data.text=tokens, or leave it out"
                    )
    elif isinstance(spec.model, DecoderSpec):
        for name, source in mixture.sources.items():
            if source.end_of_text is not None and source.end_of_text >= spec.model.vocab:
                yield (
                    f"{source_keys(name)}.end_of_text: {source.end_of_text} is not a token of "
                    f"model.vocab={spec.model.vocab}"
                )
