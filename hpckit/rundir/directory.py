"""The run directory, which holds everything of a run and is chosen once, at submit time.

<root>/<name>-<identity>/
    spec.yaml overrides.yaml manifest.json code/   links into `current`
    current -> submissions/002
    submissions/001/ 002/ ...                      what was submitted each time, never changed;
                                                   unchanged files of code/ are hard links
    events.jsonl                                   events, one JSON object per line
    verdict.json                                   the verdict on the newest generation
    lock                                           run lock, held by the supervisor
    .reserve                                       space for a verdict on a full disk
    logs/supervisor.log agent-n0.log
    logs/g001/n0/torchrun.log rank0.log exit.json  per generation, node and rank
    checkpoints/ tensorboard/ ledger/ profile/ report/ dataset.index
    evaluations/ID/                                events, log and lock of the evaluation of the
                                                   checkpoint with this id
    alerts.json                                    up to which event alerts were sent
    trackers/ mlflow/                              delivery marks of trackers, and their files
    orphans/JOB                                    written by agents that ended the job, as its
                                                   supervisor's node was lost
    submitit/                                      submitit's own files
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing import local_folder

if TYPE_CHECKING:  # commands that only read the files of a run do without pydantic
    from hpckit.config.spec import RunSpec

LINKS = ("spec.yaml", "overrides.yaml", "manifest.json", "code")


PROJECT_FOLDER = "project-code"
"""Folder in a code snapshot that has the project, if it is apart from hpckit's packages. No module
can have this name."""


@dataclass(frozen=True)
class RunDir:
    """Paths of the run in the folder `path`. Nothing here accesses the disk unless it says so."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def current(self) -> Path:
        return self.path / "current"

    @property
    def submissions(self) -> Path:
        return self.path / "submissions"

    @property
    def submitit(self) -> Path:
        return self.path / "submitit"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def trackers(self) -> Path:
        return self.path / "trackers"

    @property
    def mlflow(self) -> Path:
        return self.path / "mlflow"

    @property
    def dataset_record(self) -> Path:
        """The shards that the run has read last, as a dataset manifest."""
        return self.path / "dataset.index"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger"

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    @property
    def report(self) -> Path:
        return self.path / "report"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def alerts(self) -> Path:
        return self.path / "alerts.json"

    @property
    def fork(self) -> Path:
        return self.path / "fork.json"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    def evaluation(self, checkpoint: str) -> Path:
        """Returns the folder of the evaluation of the checkpoint with this id."""
        return self.evaluations / checkpoint

    def orphan(self, job: str) -> Path:
        return self.path / "orphans" / job

    def submission(self, number: int) -> Path:
        return self.submissions / f"{number:03d}"

    def spec(self, submission: int) -> Path:
        return self.submission(submission) / "spec.yaml"

    def code(self, submission: int) -> Path:
        return self.submission(submission) / "code"

    def project_code(self, submission: int) -> Path:
        """Returns the folder with the copy of the project: that of the whole code, unless a program
        has modules with the names of hpckit's packages."""
        apart = self.code(submission) / PROJECT_FOLDER
        return apart if apart.is_dir() else self.code(submission)

    def generation_logs(self, generation: int) -> Path:
        return self.logs / f"g{generation:03d}"

    def node_logs(self, generation: int, node: int) -> Path:
        return self.generation_logs(generation) / f"n{node}"

    def agent_log(self, node: int) -> Path:
        return self.logs / f"agent-n{node}.log"

    def rank_log(self, generation: int, node: int, rank: int) -> Path:
        return self.node_logs(generation, node) / f"rank{rank}.log"

    def rank_error(self, generation: int, node: int, rank: int, attempt: int) -> Path:
        return self.node_logs(generation, node) / f"rank{rank}.attempt{attempt}.error.json"

    def memory_snapshot(self, generation: int, node: int, rank: int, attempt: int) -> Path:
        return self.node_logs(generation, node) / f"rank{rank}.attempt{attempt}.memory.pickle"

    def deep_health(self, generation: int) -> Path:
        return self.generation_logs(generation) / "deep_health.json"

    def exit_report(self, generation: int, node: int) -> Path:
        return self.node_logs(generation, node) / "exit.json"

    def submission_numbers(self) -> list[int]:
        """Returns the numbers of the submissions on disk, in ascending order."""
        return _numbers(self.submissions, re.compile(r"(\d{3,})$"))

    def job_numbers(self) -> list[int]:
        """Returns the numbers of submitit's jobs in ascending order: Slurm's, or local process
        ids."""
        return _numbers(self.submitit, re.compile(r"(\d+)_submitted\.pkl$"))

    def generation_numbers(self) -> list[int]:
        """Returns the numbers of the generations that have started, in ascending order."""
        return _numbers(self.logs, re.compile(r"g(\d{3,})$"))


def run_name(spec: RunSpec) -> str:
    """Returns the name of the run that `spec` describes: of its directory, and in a checkpoint
    store.

    In the store, it stays even if the directory is renamed.
    """
    from hpckit.config.run_identity import identity

    return f"{spec.name}-{identity(spec)}"


def run_directory(spec: RunSpec, base: Path) -> RunDir:
    """Returns the directory of the run that `spec` describes; a relative root is below `base`."""
    root = (base / spec.root).resolve()
    return RunDir(root / run_name(spec))


def checkpoint_root(spec: RunSpec, run: RunDir) -> str:
    """Returns the store of the run's checkpoints."""
    return spec.checkpoint.url or str(run.checkpoints)


def store_and_name(spec: RunSpec, run: RunDir) -> tuple[str, str]:
    """Returns the store and the run's name there, by which its checkpoint services identify
    them."""
    root = checkpoint_root(spec, run)
    return str(local_folder(root) or root), run_name(spec)


def lock_paths(spec: RunSpec, run: RunDir) -> list[Path]:
    """Returns the locks that a process has to hold to work on the run: the run lock, and one in a
    store outside of the directory.

    The second one keeps two directories of one experiment from writing the same checkpoints. If the
    store is no folder, the run that starts later takes over, and the other's saves fail.
    """
    folder = local_folder(spec.checkpoint.url) if spec.checkpoint.url else None
    if folder is None:
        return [run.lock]
    return [run.lock, folder / "runs" / run_name(spec) / "lock"]


def find_run(path: Path) -> RunDir:
    """Returns the run directory at `path`, or the one that contains `path`.

    Raises:
        FileNotFoundError: there is no run there; says what was looked for.
    """
    for folder in (path.resolve(), *path.resolve().parents):
        if (folder / "submissions").is_dir():
            return RunDir(folder)
    if not path.exists():
        raise FileNotFoundError(f"there is no run {path}")
    raise FileNotFoundError(f"{path} is not a run directory (it holds no submissions/)")


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(m[1]) for entry in folder.iterdir() if (m := pattern.match(entry.name)))
