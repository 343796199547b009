"""A run in MLflow, on a server or in a folder of files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpckit.trainer.trackers.tracker_interface import (
    StepRecord,
    TrackerRejectedError,
    TrackerUnavailableError,
)

Found = TypeVar("Found")

METRICS = 1000
"""Most values that a server accepts in one request."""
PARAMS = 100
"""Most parameters that a server accepts in one request."""
PARAM_CHARS = 500
"""Most characters of a parameter."""
_NAME = re.compile(r"[^\w\-. /]")
_PERMANENT_ERRORS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
# Limits of a request; the delivery thread has retries of its own.
_REQUEST_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class MlflowRun:
    """An MLflow run that is open for one attempt."""

    note: str | None = None

    def __init__(
        self, uri: str, experiment: str, name: str, run: str | None, config: Mapping[str, Any]
    ) -> None:
        """Args:
            run: MLflow's id of the run; None if it has to be created.
            config: values that are logged as parameters when the run is created.

        Raises:
            TrackerUnavailableError: the server cannot be reached.
        """
        for variable, value in _REQUEST_LIMITS.items():
            os.environ.setdefault(variable, value)
        if uri.startswith(("/", "file:")):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # or MLflow refuses it
            uri = Path(uri).as_uri() if uri.startswith("/") else uri
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self.run = self._reopen(run) or self._create(experiment, name, config)

    def send(self, records: Sequence[StepRecord]) -> None:
        """See `Tracker.send`."""
        from mlflow.entities import Metric

        metrics = [
            Metric(_NAME.sub("_", name), float(value), int(record.time * 1000), record.step)
            for record in records
            for name, value in record.values.items()
        ]
        for some in _parts(metrics, METRICS):
            _request(partial(self._client.log_batch, self.run, metrics=some))

    def close(self, is_done: bool) -> None:
        """See `Tracker.close`. If the run continues, the next attempt sets it to RUNNING again."""
        status = "FINISHED" if is_done else "KILLED"
        _request(lambda: self._client.set_terminated(self.run, status))

    def _reopen(self, run: str | None) -> str | None:
        """Set the run to RUNNING and return its id; None if it was deleted or never existed."""
        from mlflow.exceptions import MlflowException

        if run is None:
            return None
        try:
            if self._client.get_run(run).info.lifecycle_stage == "deleted":
                return None
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise TrackerUnavailableError(str(error)) from error
        _request(lambda: self._client.update_run(run, status="RUNNING"))
        return run

    def _create(self, experiment: str, name: str, config: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        where = _request(lambda: self._experiment(experiment))
        tags = {"hpckit.rundir": name}
        created = _request(lambda: self._client.create_run(where, tags=tags, run_name=name))
        found: str = created.info.run_id
        params = [Param(key, str(value)[:PARAM_CHARS]) for key, value in flat(config)]
        for some in _parts(params, PARAMS):
            _request(partial(self._client.log_batch, found, params=some))
        return found

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        known = self._client.get_experiment_by_name(name)
        if known is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another process has created it meanwhile
                known = self._client.get_experiment_by_name(name)
                if known is None:
                    raise
        return str(known.experiment_id)


def flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the items of nested mappings with dotted keys."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _parts(values: Sequence[Found], size: int) -> Iterator[Sequence[Found]]:
    return (values[at : at + size] for at in range(0, len(values), size))


def _request(call: Callable[[], Found]) -> Found:
    from mlflow.exceptions import MlflowException

    try:
        return call()
    except MlflowException as error:
        raise (
            TrackerRejectedError
            if error.error_code in _PERMANENT_ERRORS
            else TrackerUnavailableError
        )(str(error)) from error
    except OSError as error:
        raise TrackerUnavailableError(str(error)) from error
