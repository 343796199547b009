"""Imports what the programs of a run do that do without torch: those that submit it, supervise it
and watch over its nodes."""

from __future__ import annotations

import importlib
import sys

_MODULES = (
    *("hpckit.submit.launch_command", "hpckit.submit.compose", "hpckit.submit.preflight.checks"),
    *("hpckit.submit.preparation", "hpckit.submit.submission_start", "hpckit.submit.run_follower"),
    *("hpckit.submit.job_submission", "hpckit.report.terminal.run_summary"),
    *("submitit.core._submit", "hpckit.supervisor.supervisor", "hpckit.agent.watchdog"),
    "checkpointing.storage.posix.posix_storage",
)
_OVERRIDES = (
    *("name=t", "model=gpt_nano", "train.steps=120", "cluster.device=cpu", "optim.lr=1e-3"),
    *("root=/tmp/my-runs_1/a.b", "debug.drill.preempt_at=[4]", "user_config.word=a"),
)
"""Of a run that reads the files, and has the kinds of words, that most runs have."""


def import_all() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    import typer.main

    from hpckit import cli
    from hpckit.config.spec_parser import prepare_parser
    from hpckit.submit.compose import compose_spec
    from tests.startup.kept_results import keep_results

    function = cli.main
    main = importlib.import_module("hpckit.cli.main")  # of the same name
    cli.main = function
    prepare_parser()
    keep_results()
    typer.main.get_command(main.app)
    compose_spec(_OVERRIDES)
    if "torch" in sys.modules:
        raise RuntimeError("a process that is to do without torch has imported it")
