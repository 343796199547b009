"""Modules by the names that they had in earlier releases: in configs, specs, job scripts and users'
own code.

`install` has Python find them: the module of now is imported, and its name is said once. Entry
points keep their names, of which specs and configs are full, so nothing is said of those.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

_ENTRY_POINTS = {
    "hpckit.drill.workload": "hpckit.faults.campaign.workload",
    "hpckit.training.images": "hpckit.trainer.images",
    "hpckit.training.language_model": "hpckit.trainer.language_model",
}
_MODULES = {
    "data.wds.convert": "data.wds.pipeline_conversion",
    "hpckit.launch.compose": "hpckit.submit.compose",
    "hpckit.launch.entry": "hpckit.submit.preflight.entry_point",
    "hpckit.launch.job": "hpckit.supervisor.user_job",
    "hpckit.launch.main": "hpckit.submit.launch_command",
    "hpckit.launch.preflight": "hpckit.submit.preflight.checks",
    "hpckit.launch.product": "hpckit.submit.arrays.override_product",
    "hpckit.run.directory": "hpckit.rundir.directory",
    "hpckit.run.events": "hpckit.events.event_log",
    "hpckit.run.parse": "hpckit.config.spec_parser",
    "hpckit.run.spec": "hpckit.config.spec",
    "hpckit.training.curves": "hpckit.trainer.metrics.tensorboard_curves",
    "hpckit.training.run": "hpckit.trainer.run_loop",
}
_NOW = _ENTRY_POINTS | _MODULES
_PACKAGES = {name.rpartition(".")[0] for name in _NOW} - {"data.wds"}
"""Packages of earlier releases that are no more."""


class _EarlierNames:
    """A finder of `sys.meta_path`, and the loader of what it finds."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in _PACKAGES:
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        if name not in _NOW:
            return None
        if name in _MODULES:
            import warnings  # which a start without earlier names does not need

            warnings.warn(f"{name} is {_NOW[name]} now", FutureWarning, stacklevel=2)
        return ModuleSpec(name, self, origin=_NOW[name])  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Have whoever imports it get the module of now."""
        if module.__name__ in _NOW:
            sys.modules[module.__name__] = import_module(_NOW[module.__name__])

    def get_code(self, name: str) -> CodeType | None:
        """For `python -m`."""
        now = find_spec(_NOW[name])
        assert now is not None
        assert now.loader is not None
        code: CodeType | None = now.loader.get_code(_NOW[name])  # type: ignore[attr-defined]
        return code


def current(module: str) -> str:
    """The name of a module now."""
    return _NOW.get(module, module)


def install() -> None:
    """Have these names found from now on; a second time does nothing."""
    if not any(isinstance(finder, _EarlierNames) for finder in sys.meta_path):
        # before the finder of files, for which an empty folder that is left is a package
        sys.meta_path.insert(0, _EarlierNames())
