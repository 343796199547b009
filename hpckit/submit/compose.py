"""Composes overrides and `conf/` into a validated spec, once, on the login node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpckit.config.config_trees import conf_dir, project_tree
from hpckit.config.spec import RunSpec
from hpckit.config.spec_error import SpecError
from hpckit.config.spec_parser import parse_spec, spec_values
from hpckit.rundir.code_snapshot.project import Project, find_project
from hpckit.submit.composition.composed_values import ComposedValues


def compose_spec(
    overrides: Sequence[str], conf: Path | None = None, project: Project | None = None
) -> RunSpec:
    """Returns the validated spec of `overrides` on the config tree `conf` (default: hpckit's own,
    extended by `conf/` of `project`, which is by default the one around the working directory).

    Raises:
        SpecError: with all problems that can be found together.
    """
    from hpckit.submit.composition.hydra_values import compose_values  # imports Hydra

    yours = None if conf else project_tree((project or find_project(Path.cwd())).root)
    return spec_of(compose_values(overrides, conf or conf_dir(), yours))


def spec_of(composed: ComposedValues) -> RunSpec:
    """Returns the validated spec of composed values.

    Raises:
        SpecError: overrides were refused, or the values are not valid.
    """
    try:
        spec = parse_spec(composed.values, may_override=True)
    except SpecError as error:
        raise SpecError([*composed.refused, *error.violations]) from None
    if composed.refused:
        raise SpecError(composed.refused)
    return spec


def amend_spec(spec: RunSpec, overrides: Sequence[str], yours: Path | None) -> RunSpec:
    """Returns `spec` with `overrides`, independent of the files that it was composed from: only
    options of groups among `overrides` are read, from hpckit's own tree and from `yours`.

    Raises:
        SpecError: with all problems that can be found together.
    """
    from hpckit.submit.composition.hydra_values import amend_values  # imports Hydra

    values = spec_values(spec)
    amend_values(values, overrides, conf_dir(), yours)
    return parse_spec(values, may_override=True)
