"""Rules that keep secrets out of a spec, which is written to the run directory and shown. They are
pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from data.source.address import has_secrets, masked
from hpckit.config.shard_places import shard_places
from hpckit.config.spec import RunSpec

_SECRET = re.compile(
    r"(^|_)(SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_KEY)(_|$)",
    re.IGNORECASE,
)
_MIN_LENGTH = 6  # shorter values are not secrets, and may be part of any word


def secret_violations(spec: RunSpec) -> Iterator[str]:
    """Yields every key that holds a secret, one line each; no value is shown."""
    for key, value in _urls(spec):
        if value is not None and has_secrets(value):
            yield (
                f"{key}: contains a password or a signature, which would be written to the run's "
                "directory; give credentials in the environment or in your own files"
            )
    slurm = spec.cluster.slurm
    for name in sorted(slurm.env) if slurm is not None else ():
        if _SECRET.search(name):
            yield (
                f"cluster.slurm.env.{name}: would be written to the run's directory; export it "
                "before you submit: jobs get the environment that they are submitted from"
            )


def without_secrets(text: str, env: Mapping[str, str]) -> str:
    """Returns `text`, which another program wrote, without passwords in URLs and the secrets of
    `env`."""
    for name, value in env.items():
        if len(value) >= _MIN_LENGTH and _SECRET.search(name):
            text = text.replace(value, "…")
    return masked(text)


def _urls(spec: RunSpec) -> Iterator[tuple[str, str | None]]:
    slurm = spec.cluster.slurm
    yield "root", spec.root
    yield from shard_places(spec.data).items()
    yield "checkpoint.url", spec.checkpoint.url
    yield "metrics.wandb.url", spec.metrics.wandb.url
    yield "metrics.mlflow.uri", spec.metrics.mlflow.uri
    if spec.data.pack is not None:
        yield "data.pack.source", spec.data.pack.source
    if spec.init_from is not None:
        yield "init_from.path", spec.init_from.path
    if slurm is not None and slurm.container is not None:
        yield "cluster.slurm.container.image", slurm.container.image
