"""The overrides of a run that is only made to be measured. Pure."""

from __future__ import annotations

from hpckit.submit.composition.hydra_values import quoted


def short_run_words(name: str, root: str, steps: int) -> list[str]:
    """Return overrides of a run that records each step and saves nothing but its end."""
    return [
        *(f"name={name}", f"root={quoted(root)}", f"train.steps={steps}", "train.log_every=1"),
        *("launch.continuation=none", "optim.warmup_steps=0"),
        *(f"checkpoint.{key}=null" for key in ("every_steps", "every_minutes", "mtbf_hours")),
        *("checkpoint.max_unsaved_minutes=null", "checkpoint.url=null", "checkpoint.local=null"),
    ]
