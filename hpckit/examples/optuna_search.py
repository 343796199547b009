"""A search by Optuna of which each trial is a run.

    pip install optuna
    python -m hpckit.examples.optuna_search --metric val_loss --trials 20 --at-once 4 \
        experiment=first train.validate_every=100 data.validation=/data/held-out cluster=slurm \
        'optim.lr=tag(log,interval(1e-4,1e-2))' 'optim.weight_decay=choice(0,0.01,0.1)'

Overrides are those of launch.py. Those with several values are searched, in the words of Hydra's
sweeps: `a,b` or `choice(a,b)`, `range(1,9,2)`, `interval(0,1)`, `int(interval(1,8))`, and around an
interval `tag(log,...)`. The study is a file of Optuna's, `search.log` or as `--study` says. Kill
this program whenever you like: runs go on, through preemptions too, and the same command takes them
up again, as the same overrides name the same run. A trial whose run ends without being done has
failed; the search goes on without it.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import EventTail
from hpckit.events.schema import StepLogged, Validated
from hpckit.report.overview import Queue, read_overview
from hpckit.rundir.directory import RunDir, run_directory
from hpckit.submit.arrays.override_product import multiply
from hpckit.submit.compose import compose_spec
from hpckit.submit.launch_command import main as launch
from hpckit.submit.preflight.checks import with_absolute_paths

_TICK_S = 5.0
_DONE = "done"
_GOAL = "goal"


@dataclass(frozen=True)
class StudySearch:
    """What is fixed, and what is searched."""

    fixed: tuple[str, ...]
    space: dict[str, BaseDistribution]

    def overrides(self, chosen: Mapping[str, Any]) -> list[str]:
        """Of the run of a trial."""
        return [*self.fixed, *(f"{key}={value}" for key, value in chosen.items())]

    def first(self) -> dict[str, Any]:
        """Of each key the first value, or the lowest."""
        return {
            key: one.choices[0] if isinstance(one, CategoricalDistribution) else one.low  # type: ignore[attr-defined, unused-ignore]
            for key, one in self.space.items()
        }


def parse(overrides: Sequence[str]) -> StudySearch:
    """
    Raises:
        SpecError: an override cannot be searched, or none is to be.
    """
    fixed: list[str] = []
    space: dict[str, BaseDistribution] = {}
    for text in overrides:
        try:
            item: Override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            raise SpecError([f"{text}: {error}"]) from error
        if not item.is_sweep_override():
            fixed.append(text)
            continue
        try:
            space[item.get_key_element()] = distribution(text, item.value())
        except ValueError as error:
            raise SpecError([f"{text}: {error}"]) from error
    if not space:
        raise SpecError(["nothing to search: give a key several values, as in optim.lr=1e-3,3e-4"])
    return StudySearch(tuple(fixed), space)


def distribution(text: str, sweep: object) -> BaseDistribution:
    """Optuna's word for what Hydra calls a sweep; `text` is the override that it stands in.

    Raises:
        SpecError: there is none.
    """
    if isinstance(sweep, IntervalSweep) and sweep.start is not None and sweep.end is not None:
        log = "log" in sweep.tags
        if isinstance(sweep.start, int):
            return IntDistribution(sweep.start, int(sweep.end), log=log)
        return FloatDistribution(sweep.start, sweep.end, log=log)
    return CategoricalDistribution([word.partition("=")[2] for (word,) in multiply([text])])


def measured(run: RunDir, metric: str) -> float | None:
    """What the newest step that has the metric says of it; None: no step has it."""
    found = [
        (event.step, event.time, float(event[metric]))
        for event in EventTail(run.events).read()
        if isinstance(event, StepLogged | Validated) and event.get(metric) is not None
    ]
    return max(found)[2] if found else None


def chosen(trial: FrozenTrial) -> str:
    """What Optuna has chosen for it, to be read."""
    values = trial.params.items()
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values)


def begin(overrides: Sequence[str]) -> None:
    """Launch a run, or go on with it.

    Raises:
        SpecError: it is refused.
    """
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        status = launch(["--detach", *overrides])
    if status:
        raise SpecError([line.removeprefix("error: ") for line in said.getvalue().splitlines()])


class StudyTrials:
    """The trials of a study, and the run of each."""

    def __init__(self, study: optuna.Study, search: StudySearch, metric: str) -> None:
        self._study, self._search, self._metric = study, search, metric
        self._runs: dict[int, RunDir] = {}

    def go_on(self, total: int, at_once: int) -> bool:
        """Report runs that have ended, and begin as many as there is room for; False: all is over.

        Raises:
            SpecError: the config of a run is refused.
        """
        slurm = Queue()
        for trial in self._under_way():
            self._look_at(trial, slurm)
        room = at_once - len(self._under_way())
        for _ in range(min(room, total - len(self._study.trials))):
            self._study.ask(self._search.space)
        for trial in self._under_way():
            if trial.number not in self._runs:
                self._begin(trial, slurm)
        return bool(self._under_way())

    def _under_way(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def _look_at(self, trial: FrozenTrial, slurm: Queue) -> None:
        run = self._runs.get(trial.number)
        if run is None or (it := read_overview(run, slurm)).is_alive:
            return
        value = measured(run, self._metric) if it.word == _DONE else None
        if value is not None and math.isfinite(value):
            self._study.tell(trial.number, value)
            print(f"trial {trial.number}: {self._metric} {value:.6g}", flush=True)
            return
        self._study.tell(trial.number, state=TrialState.FAIL)
        why = f"has no finite {self._metric}" if it.word == _DONE else it.word
        print(f"trial {trial.number} failed: {why}; see hpckit why {run.path}", flush=True)

    def _begin(self, trial: FrozenTrial, slurm: Queue) -> None:
        """A run that is done, or under way since an earlier search, stays as it is."""
        overrides = self._search.overrides(trial.params)
        run = run_directory(with_absolute_paths(compose_spec(overrides), Path.cwd()), Path.cwd())
        if not (run.path.exists() and read_overview(run, slurm).is_alive):
            begin(overrides)
        print(f"trial {trial.number}: {chosen(trial)}  {run.path}", flush=True)
        self._runs[trial.number] = run


def open_study(file: Path, search: StudySearch, metric: str, maximize: bool) -> optuna.Study:
    """
    Raises:
        SpecError: the file has a study of something else, or none.
    """
    try:
        study = optuna.create_study(
            study_name=file.stem,
            storage=JournalStorage(JournalFileBackend(str(file))),
            sampler=optuna.samplers.TPESampler(constant_liar=True),
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
        )
    except (OSError, ValueError) as error:
        raise SpecError([f"--study {file}: {error}"]) from error
    space = {key: distribution_to_json(one) for key, one in search.space.items()}
    goal = {"metric": metric, "maximize": maximize, "space": space}
    if (known := study.user_attrs.get(_GOAL, goal)) != goal:
        raise SpecError([f"{file}: has a study of {known}; give another file by --study"])
    study.set_user_attr(_GOAL, goal)
    return study


def positive(text: str) -> int:
    """
    Raises:
        ValueError: it is no number above 0.
    """
    if (number := int(text)) < 1:
        raise ValueError
    return number


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--metric", required=True, help="a name that the run logs or validates")
    parser.add_argument("--maximize", action="store_true", help="else it is to be small")
    parser.add_argument("--trials", type=positive, default=20)
    parser.add_argument("--at-once", type=positive, default=1, help="runs beside each other")
    parser.add_argument("--study", type=Path, default=Path("search.log"), help="its file")
    parser.add_argument("overrides", nargs="+")
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # trials are told below
    try:
        search = parse(asked.overrides)
        compose_spec(search.overrides(search.first()))  # before anything is written down
        study = open_study(asked.study, search, asked.metric, asked.maximize)
        trials = StudyTrials(study, search, asked.metric)
        while trials.go_on(asked.trials, asked.at_once):
            time.sleep(_TICK_S)
    except SpecError as error:
        print("\n".join(f"error: {one}" for one in error.violations), file=sys.stderr)
        return 2
    if not any(trial.state is TrialState.COMPLETE for trial in study.trials):
        print("error: no trial was done", file=sys.stderr)
        return 1
    best = study.best_trial
    print(f"best: trial {best.number}, {asked.metric} {best.value:.6g}: {chosen(best)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
