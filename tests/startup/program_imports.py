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


def import_all() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    from hpckit import cli
    from hpckit.config.spec_parser import prepare_parser
    from hpckit.submit.compose import compose_spec
    from tests.startup.parsed_configs import keep_parsed

    main = cli.main
    importlib.import_module("hpckit.cli.main")  # of the same name
    cli.main = main
    prepare_parser()
    keep_parsed()
    compose_spec([])  # which reads most files that others read
    if "torch" in sys.modules:
        raise RuntimeError("a process that is to do without torch has imported it")
