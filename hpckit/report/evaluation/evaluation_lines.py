"""The metrics of evaluations as lines and as curves over steps. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hpckit.config.rules.validation_and_evaluation import EVAL_PREFIX
from hpckit.config.spec import EvalSpec
from hpckit.report.evaluation.evaluation_records import EvaluationRecord, EvaluationState

_OPEN = (
    EvaluationState.RUNNING,
    EvaluationState.PENDING,
    EvaluationState.WAITING,
    EvaluationState.FAILED,
    EvaluationState.LEFT_OUT,
)


def metric_curves(
    records: Iterable[EvaluationRecord],
) -> dict[str, list[tuple[int, float]]]:
    """Returns (step, value) of each metric by its name with the prefix, by step; of a step whose
    checkpoint was saved twice, the newer one."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        for name, value in record.metrics.items():
            found.setdefault(name, {})[record.step] = value
    return {name: sorted(values.items()) for name, values in sorted(found.items())}


def metric_lines(
    records: Iterable[EvaluationRecord], spec: EvalSpec | None
) -> list[tuple[str, str]]:
    """Returns the name and the text of a line for each metric: its first and its newest value, and
    the best one if it is `eval.metric`."""
    lines = []
    for name, values in metric_curves(records).items():
        (step, first), (newest, last) = values[0], values[-1]
        text = f"{last:.4g} at step {newest:,}"
        if len(values) > 1:
            text = f"{first:.4g} at step {step:,}, {text}"
        if spec is not None and name == f"{EVAL_PREFIX}{spec.metric}":
            choice = min if spec.mode == "min" else max
            best = choice(value for _, value in values)
            at = max(one for one, value in values if value == best)
            text += f"; best {best:.4g} at step {at:,}"
        lines.append((name, text))
    return lines


def state_words(records: Sequence[EvaluationRecord]) -> str | None:
    """Returns the newest metrics and the numbers of evaluations that have none, in one line; None
    if there are no evaluations."""
    if not records:
        return None
    counts = Counter(record.state for record in records)
    parts = [f"{counts[state]} {state}" for state in _OPEN if counts[state]]
    done = [record for record in records if record.metrics]
    if done:
        values = (f"{name} {value:.4g}" for name, value in sorted(done[-1].metrics.items()))
        parts.insert(0, f"step {done[-1].step:,}: {', '.join(values)}")
    return "; ".join(parts)
