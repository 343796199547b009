"""Plain data to a spec and back, what is said of data that is none, and what identifies a run."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpckit.config import spec_parser
from hpckit.config.earlier_versions import ADDED
from hpckit.config.run_identity import identity
from hpckit.config.spec_parser import (
    SpecError,
    all_keys,
    dump_spec,
    parse_spec,
    read_spec,
    spec_values,
)
from hpckit.text import plain_yaml
from tests.effort import times
from tests.unit.hpckit.specs_and_processes import make_spec, make_values, violations_of

KEYS = [".".join(path) for path in all_keys()]
LEAVES = [key for key in KEYS if not any(other.startswith(f"{key}.") for other in KEYS)]

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "user_config": st.dictionaries(st.text(), PLAIN, max_size=4),
        "root": st.text(min_size=1),
        "optim.lr": st.floats(min_value=0, exclude_min=True, allow_infinity=False),
        "train.seed": st.integers(0, 2**63 - 1),
        "data.pack": st.none(),
        "checkpoint.every_steps": st.none(),
        "checkpoint.keep.best": st.none() | st.text(),
        "debug.drill.nodes": st.lists(st.sampled_from([1, 2, 4, 8]), max_size=4),
    },
)

ANOTHER_VALUE: dict[str, Any] = {
    "name": "other",
    "entry": "mine.train:main",
    "command.arguments": ["python", "train.py", "--lr", "0.1"],
    "command.cwd": "/elsewhere",
    "command.stop_signal": "SIGUSR1",
    "command.step_pattern": "step (?P<step>[0-9]+)",
    "command.tensorboard_dir": "runs",
    "root": "/elsewhere",
    "cluster.device": "auto",
    "cluster.grace_s": 7.5,
    "cluster.address": "10.0.0.1",
    "cluster.slurm.partition": "gpu",
    "cluster.slurm.account": "p200",
    "cluster.slurm.qos": "long",
    "cluster.slurm.constraint": "a100",
    "cluster.slurm.reservation": "night",
    "cluster.slurm.exclude": ["n07"],
    "cluster.slurm.time_limit": "1-00:00:00",
    "cluster.slurm.notice_s": 300,
    "cluster.slurm.gpus": "gres",
    "cluster.slurm.gpu_type": "a100",
    "cluster.slurm.cpus_per_node": 64,
    "cluster.slurm.memory": "400G",
    "cluster.slurm.exclusive": True,
    "cluster.slurm.python": "/opt/env/bin/python",
    "cluster.slurm.setup": ["module load cuda"],
    "cluster.slurm.options": {"nice": 100},
    "cluster.slurm.env": {"NCCL_DEBUG": "INFO"},
    "cluster.slurm.pass_environment": ["SLURM_MPI_TYPE"],
    "cluster.slurm.interface": "ib0",
    "cluster.slurm.scratch": "/local",
    "cluster.slurm.suspects.folder": "/shared/suspects",
    "cluster.slurm.suspects.group": "ml",
    "cluster.slurm.suspects.hours": 12.0,
    "cluster.slurm.suspects.hook": ["/opt/site/suspect", "--queue"],
    "cluster.slurm.container.kind": "apptainer",
    "cluster.slurm.container.image": "/images/train.sif",
    "cluster.slurm.container.mounts": ["/data:/data:ro"],
    "cluster.slurm.container.python": "/opt/bin/python",
    "cluster.slurm.container.options": ["--container-writable"],
    "launch.max_parallel": 3,
    "launch.nodes": 2,
    "launch.nproc_per_node": 4,
    "launch.threads_per_worker": 3,
    "launch.collective_timeout_s": 11.0,
    "launch.preload": False,
    "launch.continuation": "none",
    "retry.max_restarts": 9,
    "retry.crash": 9,
    "retry.infra": 9,
    "retry.hang": 9,
    "retry.oom": 9,
    "retry.jobs_without_checkpoint": 9,
    "retry.node_hours_without_checkpoint": 9.5,
    "train.steps": 999,
    "train.global_batch": 32,
    "train.batch_ramp.start": 8,
    "train.batch_ramp.increment": 6,
    "train.batch_ramp.samples": 500,
    "train.sequence_ramp.start": 32,
    "train.sequence_ramp.increment": 16,
    "train.sequence_ramp.samples": 500,
    "train.sequence_ramp.method": "split",
    "train.micro_batch": 8,
    "train.seed": 2,
    "train.log_every": 3,
    "train.trace_share": 0.01,
    "train.require_finite": False,
    "train.validate_every": 50,
    "train.validate_samples": 100,
    "model.vocab": 300,
    "model.layers": 3,
    "model.heads": 4,
    "model.width": 128,
    "model.seq_len": 65,
    "model.experts.count": 8,
    "model.experts.top_k": 1,
    "model.experts.hidden": None,
    "model.experts.balance_rate": 0.01,
    "model.kv_heads": 1,
    "model.hidden": 96,
    "model.rope_theta": 5e5,
    "model.norm_eps": 1e-6,
    "model.tied": True,
    "init_from.kind": "huggingface",
    "init_from.path": "/elsewhere",
    "init_from.step": 7,
    "init_from.item": "ema",
    "lora.rank": 2,
    "lora.alpha": 3.0,
    "lora.target_modules": ["attention.qkv"],
    "model.classes": 10,
    "model.depths": [1, 2],
    "model.channels": 16,
    "model.image_size": 64,
    "model.sync_norm": True,
    "model.patch": 16,
    "model.positions": "learned",
    "precision.compute": "bf16",
    "precision.reduce": "bf16",
    "precision.master": "bf16",
    "memory.activation_checkpointing": "full",
    "memory.cpu_offload": True,
    "memory.loss_chunks": 4,
    "memory.compile": True,
    "memory.attention": "math",
    "memory.snapshot": True,
    "data.shards": "/other/shards",
    "data.grow": "next_epoch",
    "data.validation": "/held/out",
    "data.mixture.sources": {"web": {"shards": "/data/web", "weight": 1.0}},
    "data.mixture.unit": "tokens",
    "data.mixture.stages": [{"step": 5, "weights": {"web": 1.0}}],
    "data.mixture.block": 512,
    "data.identity_mixture": {"sources": {"web": {"shards": "/data/web", "weight": 1.0}}},
    "data.text": "tokens",
    "data.document_mask": False,
    "data.dtype": "uint32",
    "data.end_of_text": 256,
    "data.column": "ids",
    "data.pack.source": "/texts",
    "data.pack.suffixes": [],
    "data.pack.exclude": ["x"],
    "data.pack.samples_per_shard": 65,
    "data.images.augment": False,
    "data.images.label_smoothing": 0.2,
    "data.prefetch": 5,
    "data.balance": "attention",
    "data.threads": 5,
    "data.streams": 24,
    "data.window": 3,
    "data.remix_every": 2,
    "data.cache": "/local/shards",
    "data.cache_gb": 7,
    "data.cache_local": "auto",
    "data.cache_peers": True,
    "data.check": "content",
    "optim.kind": "muon",
    "optim.lr": 1e-3,
    "optim.schedule": "linear",
    "optim.min_lr_ratio": 0.2,
    "optim.schedule_unit": "samples",
    "optim.warmup_steps": 101,
    "optim.decay_ratio": 0.2,
    "optim.base_batch": 64,
    "optim.scale": "sqrt",
    "optim.weight_decay": 0.2,
    "optim.momentum": 0.8,
    "optim.beta1": 0.8,
    "optim.beta2": 0.99,
    "optim.eps": 1e-9,
    "optim.grad_clip": 2.0,
    "optim.ema_decay": 0.999,
    "checkpoint.url": "/ckpts",
    "checkpoint.every_steps": 7,
    "checkpoint.every_minutes": None,
    "checkpoint.mtbf_hours": None,
    "checkpoint.max_unsaved_minutes": 30.0,
    "checkpoint.compress": False,
    "checkpoint.depth": 2,
    "checkpoint.replicas": 1,
    "checkpoint.local": "/nvme/hpckit",
    "checkpoint.staging": "buckets",
    "checkpoint.check_replicas": 5,
    "checkpoint.certify": "auto",
    "checkpoint.may_differ": ["model/*.usage"],
    "checkpoint.keep.last": 4,
    "checkpoint.keep.every": 50,
    "checkpoint.keep.best": "loss",
    "metrics.wandb.project": "gpt",
    "metrics.wandb.entity": "lab",
    "metrics.wandb.url": "https://wandb.site",
    "metrics.wandb.mode": "offline",
    "metrics.mlflow.experiment": "gpt",
    "metrics.mlflow.uri": "https://mlflow.site",
    "metrics.prometheus.folder": "/var/lib/node_exporter",
    "metrics.prometheus.port": 9400,
    "metrics.prometheus.address": "0.0.0.0",
    "metrics.prometheus.every_s": 30.0,
    "hang.step_s": 17.0,
    "hang.first_step_s": None,
    "hang.start_s": 18.0,
    "hang.validate_s": 19.0,
    "train.identity_steps": 7,
    "hang.output_s": 9.0,
    "hang.save_s": 20.0,
    "health.gpus": False,
    "health.ecc_errors": 3,
    "health.xids": False,
    "health.disk_free_gib": None,
    "health.mounts": False,
    "health.clock_skew_s": 2.5,
    "health.all_reduce": False,
    "health.probe_s": 1.5,
    "health.deep.first": False,
    "health.deep.after_suspicion": False,
    "health.deep.valid_hours": 1.0,
    "health.deep.exclude_slow": False,
    "health.deep.timeout_s": 60.0,
    "health.deep.seconds": 0.1,
    "health.deep.slow_matrix": 0.5,
    "health.deep.slow_memory": 0.5,
    "health.deep.slow_transfer": 0.5,
    "health.deep.slow_link": 0.5,
    "health.deep.slow_disk": 0.5,
    "health.deep.slow_store": 0.5,
    "alerts.slack.url_env": "HOOK",
    "alerts.slack.url_file": "/home/me/hook",
    "alerts.slack.kinds": ["verdict"],
    "alerts.mattermost.url_env": "HOOK",
    "alerts.mattermost.url_file": "/home/me/hook",
    "alerts.mattermost.kinds": ["verdict"],
    "alerts.webhook.url_env": "HOOK",
    "alerts.webhook.url_file": "/home/me/hook",
    "alerts.webhook.kinds": ["verdict"],
    "alerts.email.to": ["me@example.org"],
    "alerts.email.sender": "me@example.org",
    "alerts.email.program": "msmtp",
    "alerts.email.kinds": ["done"],
    "alerts.repeat_minutes": 5.0,
    "alerts.max_per_hour": 5,
    "eval.every": 50,
    "eval.entry": "mine.evaluate:main",
    "eval.item": "ema",
    "eval.metric": "accuracy",
    "eval.mode": "min",
    "eval.backlog": "newest",
    "eval.max_pending": 2,
    "eval.retries": 0,
    "eval.keep_hours": 2.0,
    "eval.nproc_per_node": 2,
    "eval.time_limit": "00:10:00",
    "eval.nice": 19,
    "eval.slurm.partition": "eval",
    "eval.slurm.account": "p200",
    "eval.slurm.qos": "low",
    "eval.slurm.constraint": "a100",
    "eval.slurm.cpus_per_node": 8,
    "eval.slurm.memory": "64G",
    "eval.slurm.nice": 0,
    "eval.slurm.options": {"reservation": "evaluation"},
    "heal.on_spike": "rollback",
    "heal.deviations": 12.0,
    "heal.window": 64,
    "heal.patience": 1,
    "heal.before": 2,
    "heal.most": 5,
    "heal.within": 500,
    "parallel.replicate": -1,
    "parallel.shard": 1,
    "parallel.tensor": -1,
    "parallel.pipeline": -1,
    "parallel.expert": 2,
    "parallel.schedule": "gpipe",
    "parallel.zero": 1,
    "parallel.no_sync": False,
    "elastic.spares": 2,
    "elastic.min_nodes": 1,
    "elastic.scale_lr": "linear",
    "elastic.evict_stragglers": "spare",
    "elastic.evict_most": 3,
    "elastic.evict_within_hours": 12.0,
    "elastic.evict_evidence_minutes": 5.0,
    "debug.ledger": True,
    "debug.deterministic": True,
    "debug.overfit": True,
    "debug.canary.mode": "check",
    "debug.canary.steps": 50,
    "debug.canary.file": "/golden.json",
    "debug.canary.tolerance": 1e-2,
    "debug.profile.start": 7,
    "debug.profile.steps": 5,
    "debug.profile.costs": True,
    "debug.drill.preempt_at": [5],
    "debug.drill.nodes": [2, 1],
    "user_config": {"dropout": 0.1},
}
NEEDED: dict[str, dict[str, Any]] = {
    "debug.profile.costs": {"debug.profile.start": 7},
    "cluster.slurm.suspects.group": {"cluster.slurm.suspects.folder": "/shared/suspects"},
    "eval.every": {"eval.entry": "mine.evaluate:main"},
    "eval.metric": {"eval.entry": "mine.evaluate:main"},
    "eval.item": {"optim.ema_decay": 0.9},
    "precision.master": {"precision.compute": "bf16"},
    "train.validate_every": {"train.validate_every": 10, "data.validation": "/held/out"},
    "data.validation": {"train.validate_every": 10, "data.validation": "/more"},
    "data.document_mask": {"data.text": "tokens"},
    "data.balance": {"data.text": "tokens", "memory.attention": "varlen"},
    "data.cache_peers": {"data.cache": "/local/shards"},
    "data.dtype": {"data.text": "tokens"},
    "data.end_of_text": {"data.text": "tokens"},
    "data.column": {"data.text": "tokens"},
    "memory.cpu_offload": {"cluster.device": "cuda"},
    "parallel.expert": {"launch.nodes": 2},
    "elastic.evict_stragglers": {"elastic.spares": 1, "launch.nodes": 4},
    "init_from.kind": {"init_from.kind": "checkpoint", "init_from.item": "model"},
    "optim.kind": {"optim.kind": "adamw", "optim.momentum": None},
    "optim.momentum": {"optim.kind": "muon", "optim.momentum": 0.9},
    "optim.decay_ratio": {"optim.schedule": "wsd", "optim.decay_ratio": 0.1},
    "optim.base_batch": {"optim.base_batch": 32, "optim.scale": "linear"},
    "optim.scale": {"optim.base_batch": 32, "optim.scale": "linear"},
    "debug.canary.mode": {"debug.canary.mode": "record", "debug.canary.file": "golden.json"},
    "debug.canary.file": {"debug.canary.mode": "record", "debug.canary.file": "golden.json"},
}
_BATCH_RAMP = {"start": 4, "increment": 4, "samples": 1000}
_SEQUENCE_RAMP = {"start": 16, "samples": 1000, "increment": None, "method": "truncate"}
NEEDED |= {f"train.batch_ramp.{n}": {"train.batch_ramp": {**_BATCH_RAMP}} for n in _BATCH_RAMP}
NEEDED |= {
    f"train.sequence_ramp.{n}": {"train.sequence_ramp": {**_SEQUENCE_RAMP}} for n in _SEQUENCE_RAMP
}
"""What else has to be so for either value to work."""
ONE_VALUE_ONLY = {"cluster.kind", "model.kind"}
NO_PART_OF_IDENTITY = (
    *(
        "name",
        "root",
        "cluster.",
        "launch.",
        "elastic.",
        "hang.",
        "health.",
        "heal.",
        "parallel.",
        "memory.",
        "retry.",
        "checkpoint.",
        "metrics.",
        "alerts.",
        "eval.",
        "debug.ledger",
        "debug.deterministic",
        "debug.canary.steps",
        "debug.canary.file",
        "debug.canary.tolerance",
        "debug.profile.",
        "debug.drill.",
    ),
)
NOR_THESE = (
    *("train.micro_batch", "train.log_every", "train.trace_share"),
    "train.require_finite",
    *("train.validate_every", "train.validate_samples", "data.validation"),
    *(
        "data.balance",
        "data.prefetch",
        "data.threads",
        "command.stop_signal",
        "command.step_pattern",
    ),
    "command.tensorboard_dir",
    *("data.cache", "data.cache_gb", "data.cache_local", "data.check", "data.grow"),
    "data.cache_peers",
)


OF_OTHERS = {
    "llama_nano": tuple(
        f"model.{name}" for name in ("kv_heads", "hidden", "rope_theta", "norm_eps", "tied")
    ),
    "resnet_nano": (
        *(f"model.{name}" for name in ("classes", "depths", "channels", "image_size", "sync_norm")),
        *("data.images.augment", "data.images.label_smoothing"),
    ),
    "vit_nano": ("model.patch", "model.positions"),
}
"""Keys that another model than a GPT has, or what it trains on."""

OF_EXPERTS = ("model.experts.", "parallel.expert")


def options_with(key: str) -> dict[str, str]:
    """The options of `conf/` that have a value for the key."""
    cluster = "slurm" if key.startswith("cluster.slurm") else "local"
    if key.startswith("cluster.slurm.container."):
        cluster = "site_pyxis"
    others = ((model, keys) for model, keys in OF_OTHERS.items() if key.endswith(keys))
    model = next((model for model, _ in others), "gpt_nano")
    if key.startswith(OF_EXPERTS):
        model = "gpt_moe_nano"
    start = "checkpoint" if key.startswith("init_from.") else "none"
    lora = "default" if key.startswith("lora.") else "none"
    command = "program" if key.startswith("command.") else "none"
    return {
        **{"cluster": cluster, "model": model, "start": start, "lora": lora},
        "data": "mixture" if key.startswith(("data.mixture.", "data.identity_m")) else "stdlib",
        **{"command": command, "health": "deep" if key.startswith("health.deep.") else "default"},
    }


HAVE_DEFAULTS = {"train.sequence_ramp.increment", "train.sequence_ramp.method"}


def ramps_with(key: str) -> dict[str, Any]:
    """The ramp that has the key; nothing for other keys."""
    return NEEDED[key] if key.startswith(("train.batch_ramp.", "train.sequence_ramp.")) else {}


def refusal(changes: dict[str, Any], **options: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_spec(make_values(changes, **options))
    return caught.value.violations


@settings(max_examples=times(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=CHANGES)
def test_a_spec_comes_back_from_its_yaml(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    spec = make_spec(changes)
    path = tmp_path_factory.mktemp("spec") / "spec.yaml"
    path.write_text(dump_spec(spec), encoding="utf-8")
    again = read_spec(path)
    assert again == spec
    assert identity(again) == identity(spec)
    assert spec_values(again) == spec_values(spec)


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        make_spec().train.steps = 5  # type: ignore[misc]


@pytest.mark.parametrize("key", KEYS)
def test_a_misspelt_key_is_named_with_the_right_one(key: str) -> None:
    (line,) = refusal({**ramps_with(key), f"{key}x": 1}, **options_with(key))
    assert line == f"{key}x: unknown key; did you mean {key}?"


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key not in {new.key for new in ADDED} | HAVE_DEFAULTS]
)
def test_a_key_without_a_value_is_named(key: str) -> None:
    values = make_values(ramps_with(key), **options_with(key))
    *parents, last = key.split(".")
    where = values
    for parent in parents:
        where = where[parent]
    del where[last]
    with pytest.raises(SpecError) as caught:
        parse_spec(values)
    assert caught.value.violations == [f"{key}: has no value"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("optim.global_batch", "train.global_batch"), ("train.lr", "optim.lr"), ("lr", "optim.lr")],
)
def test_a_key_in_the_wrong_group_is_told_its_place(wrong: str, right: str) -> None:
    assert refusal({wrong: 1}) == [f"{wrong}: unknown key; did you mean {right}?"]


@pytest.mark.parametrize(
    ("key", "there"),
    [
        ("parallel.qqqq", "replicate, shard, tensor, pipeline, expert, schedule, zero, no_sync"),
        ("debug.drill.qqqq", "preempt_at, nodes"),
    ],
)
def test_a_key_like_no_other_is_told_what_there_is(key: str, there: str) -> None:
    assert refusal({key: 1}) == [f"{key}: unknown key; the keys here are {there}"]


def test_a_key_of_another_kind_of_model_is_told_so() -> None:
    told = "model.kv_heads: a model of this kind has no such key"
    assert refusal({"model.kv_heads": 2}) == [told]
    assert refusal({"model.kind": "bert"}) == [
        "model.kind: must be one of gpt, llama, resnet, vit, got 'bert'"
    ]


def test_a_number_where_text_is_wanted_is_told_how_to_be_written() -> None:
    assert refusal({"name": 2024}) == ["name: must be text, got 2024; write name=\"'2024'\""]


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = refusal({"optim.lrr": 1, "train.steps": 0, "cluster.device": "tpu", "name": 3})
    assert sorted(line.split(":")[0] for line in found) == [
        "cluster.device",
        "name",
        "optim.lrr",
        "train.steps",
    ]


def test_rules_over_several_keys_are_said_at_once() -> None:
    found = refusal({"model.heads": 5, "train.global_batch": 7, "launch.nodes": 2})
    assert [line.split(":")[0] for line in found] == ["model.heads", "train.global_batch"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("name", "a b"),
        ("name", "a/b"),
        ("name", ".hidden"),
        ("name", "a\n"),
        ("name", "a" * 65),
        ("entry", "module"),
        ("entry", "module:"),
        ("entry", "1module:main"),
        ("entry", "module:main:again"),
        ("entry", "module:main()"),
        ("cluster.kind", "kubernetes"),
        ("cluster.slurm", "gpu"),
        ("cluster.device", "tpu"),
        ("cluster.grace_s", 0),
        ("cluster.grace_s", float("inf")),
        ("launch.nodes", 0),
        ("launch.nodes", 1.5),
        ("launch.nodes", True),
        ("launch.nodes", "2"),
        ("launch.nodes", None),
        ("launch.threads_per_worker", -1),
        ("train.steps", 0),
        ("train.seed", -1),
        ("train.seed", 2**63),
        ("model.seq_len", 1),
        ("optim.lr", 0),
        ("optim.lr", float("nan")),
        ("optim.lr", "fast"),
        ("optim.min_lr_ratio", 1.01),
        ("optim.beta1", -0.1),
        ("optim.beta1", 1.0),  # torch's AdamW takes 0 <= beta < 1
        ("optim.beta2", 1.0),
        ("data.pack.suffixes", ".py"),
        ("data.pack.suffixes", [1]),
        ("checkpoint.every_steps", 0),
        ("debug.ledger", "yes"),
        ("debug.drill.nodes", [0]),
        ("model", 3),
        ("user_config", []),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_key(key: str, value: Any) -> None:
    (line,) = refusal({key: value})
    assert line.startswith(f"{key}")
    assert "got " in line


def test_data_that_is_not_plain_is_refused() -> None:
    (line,) = refusal({"user_config": {"x": {1, 2}}})
    assert "not plain data" in line


def test_two_threads_leave_plug_ins_of_pydantic_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "PYDANTIC_DISABLE_PLUGINS"
    monkeypatch.delenv(name, raising=False)
    values = make_values()
    other = threading.Thread(target=lambda: parse_spec(values))
    with spec_parser._without_plugins():
        other.start()
        other.join(0.1)  # it waits for this one
        assert other.is_alive()
    other.join()
    assert name not in os.environ


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"x": deep}
    (line,) = refusal({"user_config": deep})
    assert "recursion limit" in line
    assert len(line) < 200


def test_a_value_that_is_not_utf_8_is_refused_by_its_key() -> None:
    (line,) = refusal({"user_config": {"x": ["caf\udce9"]}})
    assert line.startswith("user_config.x: 'caf\\udce9' is not UTF-8")


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "a: [", "just text"])
def test_a_damaged_spec_file_is_refused_by_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    assert str(path) in caught.value.violations[0]


def test_every_key_has_another_value_here() -> None:
    assert ANOTHER_VALUE.keys() | ONE_VALUE_ONLY == set(LEAVES)


@pytest.mark.parametrize("key", ANOTHER_VALUE)
def test_identity_changes_with_what_the_run_is_and_nothing_else(key: str) -> None:
    options = options_with(key)
    base = {"checkpoint.every_steps": 5, "checkpoint.every_minutes": None, **NEEDED.get(key, {})}
    before = make_spec(base, **options)
    changes: dict[str, Any] = {**base, key: ANOTHER_VALUE[key]}
    if key == "optim.kind":
        changes["optim.momentum"] = 0.9
    if key == "init_from.kind":
        changes["init_from.item"] = None
    if key in ("checkpoint.every_minutes", "checkpoint.mtbf_hours"):
        changes |= {"checkpoint.every_steps": None, key: 3.0}
    if key in ("parallel.replicate", "parallel.shard", "parallel.tensor", "parallel.pipeline"):
        changes |= {"parallel.shard": 1, key: -1}
    if key == "parallel.shard":
        changes |= {"parallel.replicate": -1, key: 1}
    after = make_spec(changes, **options)
    assert after != before
    kept = key.startswith(NO_PART_OF_IDENTITY) or key in NOR_THESE
    assert (identity(after) == identity(before)) is kept


def test_identity_changes_where_no_shards_are_packed_any_more() -> None:
    assert identity(make_spec({"data.pack": None})) != identity(make_spec())


def test_identity_is_eight_hex_digits_of_the_values_alone() -> None:
    found = identity(make_spec())
    assert len(found) == 8
    assert set(found) <= set("0123456789abcdef")
    backwards = dict(reversed(make_values().items()))
    assert identity(parse_spec(backwards)) == found
    assert identity(make_spec({"optim.grad_clip": 1})) == found  # 1 and 1.0 are one value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: &a t\nroot: *a\n", "it has an alias, which a spec may not have"),
        ("name: [t\n", "while parsing a flow sequence"),
        ("name: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("name: t\n---\nname: u\n", "expected a single document"),
        ("name: \a\n", "special characters are not allowed"),
        ("name: " + "[" * 5000 + "]" * 5000, "recursion"),
    ],
    ids=["alias", "open", "object", "documents", "character", "depth"],
)
@pytest.mark.parametrize("has_libyaml", [True, False], ids=["libyaml", "python"])
def test_a_file_that_is_no_plain_document_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_libyaml: bool, text: str, says: str
) -> None:
    if not has_libyaml:
        monkeypatch.setattr(plain_yaml, "_FAST_LOADER", None)
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(SpecError, match=f"spec.yaml: not valid YAML .*{says}"):
        read_spec(tmp_path / "spec.yaml")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("checkpoint.certify", 0, "'auto' or greater than or equal to 1, got 0"),
        ("checkpoint.certify", "often", "'auto' or a whole number, got 'often'"),
        ("checkpoint.certify", 1e3, "'auto' or a whole number, got 1000.0; write 1000"),
        ("checkpoint.compress", "yes, please", "true or false or 'auto', got 'yes, please'"),
    ],
)
def test_a_value_of_several_types_is_one_line_without_names_of_types(
    key: str, value: Any, says: str
) -> None:
    assert violations_of({key: value}) == [f"{key}: must be {says}"]
