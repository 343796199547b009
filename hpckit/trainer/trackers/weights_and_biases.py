"""A run at Weights & Biases, or in files for `wandb sync` if W&B cannot be reached."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hpckit.config.spec import WandbSpec
from hpckit.trainer.trackers.tracker_interface import StepRecord, TrackerUnavailableError

INIT_S = 30.0
"""Seconds to wait for the server before a run starts offline."""
FINISH_S = 5.0
"""Seconds to wait for the upload at the end of an attempt, because a process that has to leave its
node has little time. The files contain all records."""


class WandbRun:
    """A W&B run that is open for one attempt."""

    def __init__(
        self,
        spec: WandbSpec,
        name: str,
        run: str | None,
        folder: Path,
        config: Mapping[str, Any],
    ) -> None:
        """Args:
        name: display name.
        run: id of the run; None if it has to be created. The id is not `name`, since W&B would
            reject all steps of a run that was started again under the same name.
        folder: folder for the files of the run.
        """
        self.run = run or f"{name}-{secrets.token_hex(3)}"
        self.note: str | None = None
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        about = {
            **{"project": spec.project, "entity": spec.entity, "id": self.run, "name": name},
            **{"config": dict(config), "resume": "allow", "reinit": "create_new"},
        }
        self._open = self._init(spec, about)

    def send(self, records: Sequence[StepRecord]) -> None:
        """Write the records to the run's files; W&B's own process uploads them."""
        import wandb

        try:
            for step, values in merged(records):
                self._open.log(values, step=step)
        except (wandb.errors.Error, OSError) as error:
            raise TrackerUnavailableError(str(error)) from error

    def close(self, is_done: bool) -> None:
        """See `Tracker.close`."""
        import wandb

        try:
            self._open.finish(exit_code=0 if is_done else 1)
        except (wandb.errors.Error, OSError) as error:  # includes TimeoutError
            found = sorted(self._folder.glob(f"wandb/*run-*-{self.run}"))
            hint = f"`wandb sync {found[-1]}` uploads the rest" if found else ""
            raise TrackerUnavailableError(
                f"not all records were sent in {FINISH_S:g} s; {hint} ({error})"
            ) from error

    def _init(self, spec: WandbSpec, about: Mapping[str, Any]) -> Any:
        import wandb

        settings = wandb.Settings(**_settings(spec, self._folder))
        if spec.mode == "online":
            try:
                return wandb.init(mode="online", settings=settings, **about)
            except (wandb.errors.Error, OSError) as error:
                first = str(error).partition("\n")[0]
                self.note = (
                    "wandb: no server, or no key for it, so this attempt is kept in files; "
                    f"`wandb sync {self._folder}/wandb/offline-run-*` uploads them ({first})"
                )
                wandb.teardown()  # ends its process, which would report that the id is in use
        try:
            return wandb.init(mode="offline", settings=settings, **about)
        except (wandb.errors.Error, OSError) as error:
            raise TrackerUnavailableError(str(error)) from error


def merged(records: Sequence[StepRecord]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each step with the values of all its records, since W&B ignores the second of two
    entries of a step."""
    for step, of_step in groupby(records, lambda record: record.step):
        yield step, {name: value for record in of_step for name, value in record.values.items()}


def _settings(spec: WandbSpec, folder: Path) -> dict[str, Any]:
    """Return settings by which W&B logs only the records, and no output, code, arguments or system
    metrics."""
    enabled = (
        *("disable_git", "disable_code", "disable_job_creation", "x_disable_meta"),
        *("x_disable_stats", "x_disable_machine_info", "silent", "quiet", "finish_timeout_raises"),
    )
    return {
        **dict.fromkeys(enabled, True),
        **{"console": "off", "root_dir": str(folder)},
        **{"init_timeout": INIT_S, "finish_timeout": FINISH_S},
        **({"base_url": spec.url} if spec.url is not None else {}),
    }
