"""Which rules apply to which entry: nothing is refused for what a run does not use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpckit.config.entry_points import (
    IMAGES,
    LANGUAGE_MODEL,
    is_built_in,
    is_data_used,
    is_training_function,
)
from hpckit.config.last_step import last_step
from hpckit.config.rules.debug import DEFAULT_CANARY_STEPS
from hpckit.config.rules.world_size import DEFAULT_BATCH, world_size_violations
from hpckit.config.spec_parser import SpecError, require_usable
from hpckit.submit.compose import compose_spec
from tests.unit.hpckit.specs_and_processes import make_spec

OWN = "mycode.train:main"
CANARY = {"debug.canary.mode": "record", "debug.canary.file": "golden.json"}
WSD = {"optim.schedule": "wsd", "optim.decay_ratio": 1.0}

UNUSED: list[tuple[dict[str, Any], str]] = [
    ({"train.steps": 20}, "optim.warmup_steps"),
    ({"train.steps": 100}, "optim.warmup_steps"),
    ({**WSD, "train.steps": 200}, "optim.decay_ratio"),
    ({"optim.momentum": 0.9}, "optim.momentum"),
    ({"optim.kind": "muon"}, "optim.momentum"),
    ({"optim.schedule": "constant"}, "optim.min_lr_ratio"),
    ({"optim.base_batch": 64}, "optim.scale"),
    ({"model.heads": 3}, "model.heads"),
    ({"model.vocab": 50}, "model.vocab"),
    ({"data.document_mask": False}, "data.document_mask"),
    ({"data.validation": "/held/out"}, "data.validation"),
    ({"train.validate_every": 10}, "data.validation"),
    ({"launch.nproc_per_node": 3}, "train.global_batch"),
    ({"launch.nodes": 5, "launch.nproc_per_node": 8}, "train.global_batch"),
    ({"train.global_batch": 24}, "train.micro_batch"),
    ({"train.micro_batch": 5}, "train.micro_batch"),
    ({"launch.nproc_per_node": 8, "parallel.tensor": 8}, "parallel.tensor"),
    ({"launch.nproc_per_node": 8, "parallel.pipeline": 8}, "parallel.pipeline"),
    ({"launch.nproc_per_node": 2, "parallel.expert": 2}, "parallel.expert"),
    ({"precision.master": "bf16"}, "precision.master"),
    ({"precision.compute": "fp8"}, "precision.compute"),
    ({"memory.cpu_offload": True}, "memory.cpu_offload"),
    ({"memory.attention": "cudnn"}, "memory.attention"),
    ({"memory.loss_chunks": 100_000}, "memory.loss_chunks"),
]
"""Changes of the spec, and the key for which hpckit's own training function refuses them."""


def refused(changes: dict[str, Any], entry: str = LANGUAGE_MODEL, **options: str) -> list[str]:
    try:
        make_spec({**changes, "entry": entry}, **options)
    except SpecError as error:
        return error.violations
    return []


@pytest.mark.parametrize(("changes", "key"), UNUSED)
def test_keys_that_fit_together_matter_to_the_entries_that_use_them(
    changes: dict[str, Any], key: str
) -> None:
    assert any(line.startswith(f"{key}: ") for line in refused(changes))
    assert refused(changes, OWN) == []


@pytest.mark.parametrize("entry", [LANGUAGE_MODEL, OWN])
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"train.steps": 0}, "train.steps"),
        ({"train.steps": "many"}, "train.steps"),
        ({"optim.warmup_steps": -1}, "optim.warmup_steps"),
        ({"optim.lr": 0.0}, "optim.lr"),
        ({"optim.decay_ratio": 1.5}, "optim.decay_ratio"),
        ({"debug.canary.steps": 0}, "debug.canary.steps"),
        ({"model.heads": 0}, "model.heads"),
        ({"train.micro_batch": -4}, "train.micro_batch"),
        ({"parallel.tensor": 0}, "parallel.tensor"),
        ({"launch.nproc_per_node": 3, "parallel.tensor": 2}, "parallel"),
        ({"debug.canary.mode": "check"}, "debug.canary.file"),
        ({**CANARY, "train.steps": 150, "debug.canary.steps": 151}, "debug.canary.steps"),
        ({"train.steps": 200, "debug.profile.start": 200}, "debug.profile.start"),
        ({"train.steps": 200, "debug.drill.preempt_at": [200]}, "debug.drill.preempt_at"),
        ({"launch.nproc_per_node": 3, "train.global_batch": 20}, "train.global_batch"),
        ({"launch.nproc_per_node": 3, "elastic.scale_lr": "sqrt"}, "train.global_batch"),
        ({"elastic.min_nodes": 3}, "elastic.min_nodes"),
        ({"elastic.evict_stragglers": "spare"}, "elastic.evict_stragglers=spare"),
        ({"elastic.evict_stragglers": "job"}, "elastic.evict_stragglers=job"),
        ({"checkpoint.every_minutes": 5.0}, "checkpoint.every_minutes"),
        ({"checkpoint.keep.best": "val_loss"}, "checkpoint.keep.best"),
        ({"checkpoint.url": "s3:/bucket"}, "checkpoint.url"),
    ],
)
def test_what_is_impossible_or_used_by_every_entry_is_refused_to_all(
    changes: dict[str, Any], key: str, entry: str
) -> None:
    found = refused(changes, entry)
    assert [line for line in found if line.startswith((f"{key}: ", "train.global_batch: "))]


@pytest.mark.parametrize("choice", ["resnet_nano", "vit_nano", "gpt_moe_nano", "llama_nano"])
def test_an_entry_of_the_user_has_a_model_of_its_own(choice: str) -> None:
    changes = {"data.images": None, "launch.nproc_per_node": 8, "parallel.tensor": 8}
    assert refused(changes, LANGUAGE_MODEL, model=choice)
    assert refused(changes, OWN, model=choice) == []


@pytest.mark.parametrize("start", ["huggingface", "checkpoint"])
def test_what_an_entry_of_the_user_begins_with_is_its_own_matter(start: str) -> None:
    words = ["model=vit_nano", f"init_from={start}", "init_from.path=/trained", "lora=default"]
    words += ["lora.target_modules=[mine]"]
    with pytest.raises(SpecError) as refusal:
        compose_spec([*words, f"entry={IMAGES}", "data=images", "data.shards=/data"])
    assert [line.partition(":")[0] for line in refusal.value.violations] == ["init_from", "lora"]
    compose_spec([*words, f"entry={OWN}"])
    (line,) = refused({"init_from.step": 5}, OWN, start="huggingface")
    assert line.startswith("init_from.step: ")


@pytest.mark.parametrize("entry", [LANGUAGE_MODEL, OWN])
@pytest.mark.parametrize("steps", [20, 100])
def test_a_canary_that_was_not_given_a_length_is_no_longer_than_its_run(
    steps: int, entry: str
) -> None:
    changes = {**CANARY, "train.steps": steps, "optim.warmup_steps": 5}
    assert refused(changes, entry) == []
    assert last_step(make_spec({**changes, "entry": entry})) == min(steps, DEFAULT_CANARY_STEPS)
    assert refused({"debug.canary.steps": 5000, "train.steps": 200}, entry) == [], "it is off"


def test_the_defaults_that_rules_know_are_those_of_the_config() -> None:
    spec = compose_spec([])
    assert spec.train.global_batch == DEFAULT_BATCH
    assert spec.debug.canary.steps == DEFAULT_CANARY_STEPS


@pytest.mark.parametrize("ranks", range(1, 40))
def test_an_entry_of_the_user_starts_on_any_number_of_ranks_by_default(ranks: int) -> None:
    spec = make_spec({"entry": OWN, "launch.nproc_per_node": ranks})
    assert not list(world_size_violations(spec, spec.launch.nodes))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (LANGUAGE_MODEL, True),
        (IMAGES, True),
        ("hpckit.trainer.images:main", True),
        ("hpckit.drill.workload:main", True),
        (OWN, False),
        ("hpckits.train:main", False),
    ],
)
def test_the_entries_of_hpckit_use_every_group(entry: str, expected: bool) -> None:
    spec = make_spec()
    assert is_built_in(replace(spec, entry=entry)) is expected
    assert is_training_function(replace(spec, entry=entry))


def test_a_program_uses_nothing_of_the_run_loop() -> None:
    words = ["launch.nproc_per_node=3", "train.global_batch=20", "parallel.tensor=2"]
    words += ["train.steps=5", "debug.profile.start=9", "debug.drill.preempt_at=[9]"]
    program = ["command=program", "command.arguments=[python,train.py]", "entry=null"]
    spec = compose_spec([*words, *program])
    assert not is_training_function(spec)
    assert not is_built_in(spec)
    assert not list(world_size_violations(spec, 1))
    with pytest.raises(SpecError) as refusal:
        compose_spec([*words, f"entry={OWN}"])
    assert len(refusal.value.violations) == 3


@pytest.mark.parametrize(
    ("entry", "source", "expected"),
    [
        (LANGUAGE_MODEL, "stdlib", True),
        (LANGUAGE_MODEL, None, True),
        (OWN, "stdlib", False),
        (OWN, "/texts", True),
        (OWN, None, True),
    ],
)
def test_data_that_nobody_named_are_not_taken_for_used(
    entry: str, source: str | None, expected: bool
) -> None:
    made: Any = {"source": source, "suffixes": [], "exclude": [], "samples_per_shard": 1}
    pack = None if source is None else made
    assert is_data_used(make_spec({"entry": entry, "data.pack": pack})) is expected


def test_an_entry_that_calls_the_one_of_hpckit_passes_its_rules_there() -> None:
    spec = make_spec({"entry": OWN, "train.steps": 20, "model.heads": 3})
    with pytest.raises(SpecError) as refusal:
        require_usable(spec, LANGUAGE_MODEL)
    keys = [line.partition(":")[0] for line in refusal.value.violations]
    assert keys == ["model.heads", "optim.warmup_steps"]
    require_usable(make_spec({"entry": OWN}), LANGUAGE_MODEL)
