"""The error of a spec that cannot be run, for modules that do not import the spec itself."""

from __future__ import annotations


class SpecError(ValueError):
    """Raised for a spec that cannot be run; `violations` holds all reasons, one line each."""

    def __init__(self, found: list[str]) -> None:
        super().__init__("\n".join(found))
        self.violations = found


class NoAnswerError(SpecError):
    """Raised if Slurm or a node does not answer, so that it is unknown whether the spec can be run;
    commands other than launch.py then exit with another status."""
