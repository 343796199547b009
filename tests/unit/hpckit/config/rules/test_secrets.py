"""A spec with a secret in it is refused, and the refusal does not show it."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.config.rules.secrets import without_secrets
from hpckit.config.rules.violations import violations
from hpckit.config.spec_parser import SpecError
from tests.unit.hpckit.specs_and_processes import make_spec

CANARY = "hush5ecret"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.shards", f"https://me:{CANARY}@host/{{0..9}}.tar"),
        ("data.shards", f"https://{CANARY}@host/a.tar"),
        ("data.validation", f"https://host/a.tar?X-Amz-Signature={CANARY}&a=1"),
        ("data.validation", f"https://host/a.tar?a=1&sig={CANARY}"),
        ("data.shards", f"s3://key:{CANARY}@bucket/a"),
        ("checkpoint.url", f"sftp://me:{CANARY}@host/ckpts"),
        ("checkpoint.url", f"gs://bucket/a?access_token={CANARY}"),
        ("metrics.wandb.url", f"https://me:{CANARY}@host"),
        ("metrics.mlflow.uri", f"https://me:{CANARY}@host"),
        ("cluster.slurm.env", {"HF_TOKEN": CANARY}),
        ("cluster.slurm.env", {"AWS_SECRET_ACCESS_KEY": CANARY}),
        ("cluster.slurm.env", {"WANDB_API_KEY": CANARY}),
    ],
)
def test_a_secret_is_refused_and_not_shown(key: str, value: Any) -> None:
    with pytest.raises(SpecError, match=rf"(?m)^{key}.*written to the run's directory") as caught:
        make_spec({key: value}, cluster="slurm")
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.shards", "https://host/a.tar?versionId=7"),
        ("data.shards", "/data/me:you@there/a?b"),
        ("checkpoint.url", "sftp://me@host/ckpts"),
        ("checkpoint.url", "s3://bucket/ckpts"),
        ("cluster.slurm.env", {"TOKENIZERS_PARALLELISM": "false", "NCCL_DEBUG": "WARN"}),
    ],
)
def test_what_is_no_secret_is_taken(key: str, value: Any) -> None:
    assert violations(make_spec({key: value}, cluster="slurm")) == []


def test_a_text_of_others_is_shown_without_secrets() -> None:
    env = {"WANDB_API_KEY": CANARY, "MY_TOKEN": "a", "PLAIN": "refused"}
    text = f"refused {CANARY} a https://me:{CANARY}@host/a?sig=1"
    assert without_secrets(text, env) == "refused … a https://host/a?…"
