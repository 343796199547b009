"""A new run begins with another one's parameters, bit for bit, whatever either is spread like; or
with transformers', and computes the same logits; and says what does not fit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from checkpointing import Checkpointer, list_run
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import InitFromSpec, RunSpec
from hpckit.config.spec_parser import dump_spec
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir, run_name
from hpckit.submit.preflight.start_weights import start_problems
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.initial_weights import load_initial_weights
from hpckit.trainer.models.decoder import DecoderModel
from hpckit.trainer.models.lora import is_adapter
from hpckit.trainer.models.model_builder import make
from hpckit.trainer.models.pretrained_folder import folder_problems
from tests.integration.rank_worlds import assert_same, run_world
from tests.integration.trainer.test_parallel_model import DEEP, Training, everything, spec_of
from tests.integration.trainer.test_planned_memory import pretended_world
from tests.unit.hpckit.specs_and_processes import make_spec

GPT = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 64, "vocab_size": 257}
LLAMA = {
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"hidden_size": 64, "intermediate_size": 176, "vocab_size": 257},
    **{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
}
SPREAD = ["hsdp", "fsdp_tp", "interleaved"]
BASE, FOLDER = "base", "transformers"


def transformer(
    kind: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any
) -> PreTrainedModel:
    """A model of transformers', saved in several files of a folder."""
    torch.manual_seed(3)
    if kind == "gpt":
        made: PreTrainedModel = GPT2LMHeadModel(GPT2Config(**{**GPT, **changes}))
    else:
        made = LlamaForCausalLM(LlamaConfig(**{**LLAMA, **changes}))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    nn.Module.to(made, dtype)
    made.save_pretrained(folder, max_shard_size="100KB")
    found: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return found


def starting(spec: RunSpec, path: Path, **changes: Any) -> RunSpec:
    start = InitFromSpec(kind="huggingface", path=str(path), step=None, item=None)
    return replace(spec, init_from=replace(start, **changes))


def begun(folder: Path, model: str, changes: dict[str, Any] | None = None) -> DecoderModel:
    """A model of this process alone that has begun with a folder."""
    spec = starting(make_spec(changes, model=model), folder)
    decoder = make(decoder_of(spec), seed=9)
    assert spec.init_from is not None
    with pretended_world(1):
        load_initial_weights(decoder, spec, spec.init_from)
    return decoder


def assert_same_logits(decoder: DecoderModel, there: PreTrainedModel) -> None:
    tokens = torch.randint(0, 257, (2, 64))
    with torch.no_grad():
        found, expected = decoder(tokens), there(tokens).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    there = transformer("gpt", tmp_path)
    assert_same_logits(begun(tmp_path, "gpt_nano"), there)


def test_a_gpt2_as_it_was_published_is_read(tmp_path: Path) -> None:
    """Without its head's prefix, with the mask of attention among its parameters."""
    there = transformer("gpt", tmp_path / "new")
    old = tmp_path / "old"
    old.mkdir()
    tensors = {
        n: t
        for file in (tmp_path / "new").glob("*.safetensors")
        for n, t in load_file(file).items()
    }
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    tensors |= {f"h.{n}.attn.bias": torch.ones(1, 1, 64, 64) for n in range(2)}
    save_file(tensors, old / "model.safetensors")
    shutil.copy(tmp_path / "new" / "config.json", old)
    assert_same_logits(begun(old, "gpt_nano"), there)


@pytest.mark.parametrize("is_tied", [False, True])
def test_logits_of_llama_are_the_same_from_bf16(tmp_path: Path, is_tied: bool) -> None:
    about = {"tie_word_embeddings": is_tied, "rope_theta": 5000.0}
    there = transformer("llama", tmp_path, torch.bfloat16, **about)
    changes = {
        "model.tied": is_tied,
        "model.rope_theta": there.config.rope_parameters["rope_theta"],
    }
    assert_same_logits(begun(tmp_path, "llama_nano", changes), there)


def base_run(folder: Path, changes: dict[str, Any]) -> DecoderModel:
    """A run directory with two checkpoints of a model, of which the second is another's."""
    spec, run = make_spec(changes), RunDir(folder)
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(spec))
    decoder = make(decoder_of(spec), seed=4)
    checkpointer = Checkpointer(run.checkpoints, run=run_name(spec))
    checkpointer.save(3, {"model": decoder, "ema": make(decoder_of(spec), seed=5)})
    checkpointer.wait()  # a newer save may take the place of one that waits
    checkpointer.save(7, {"model": make(decoder_of(spec), seed=6)})
    checkpointer.close()
    return decoder


SIZES = {"model.layers": 4, "model.heads": 4, "model.seq_len": 16}


def differing(rank: int, tmp: Path) -> list[str]:
    """What is not as it was in the model that a run begins with, by way of spreading and source."""
    expected = torch.load(tmp / "expected.pt")
    sources: dict[str, dict[str, Any]] = {
        "model": {"kind": "checkpoint", "step": 3, "item": "model"},
        "transformers": {},
    }
    found = []
    for kind in SPREAD:
        lora = ("lora=default",) if kind == "fsdp_tp" else ()
        plain = spec_of(kind, "gpt_nano", *DEEP, *lora)
        for name, source in sources.items():
            spec = starting(plain, tmp / name, **source)
            one = Training(spec)
            assert spec.init_from is not None
            one.parallel_model.initialize(spec.init_from)
            now = everything(one.state)
            found += [
                f"{kind} {n}" for n, t in expected[name].items() if not torch.equal(now[n], t)
            ]
            assert {*now} - {*expected[name]} == {n for n in now if is_adapter(n)}
    return found


def test_however_a_model_is_spread_it_begins_with_the_same(tmp_path: Path) -> None:
    base = base_run(tmp_path / "model", SIZES)
    transformer("gpt", tmp_path / "transformers", n_layer=4, n_head=4, n_positions=16)
    there = begun(tmp_path / "transformers", "gpt_nano", SIZES)
    expected = {"model": base.state_dict(), "transformers": there.state_dict()}
    torch.save(expected, tmp_path / "expected.pt")
    assert run_world(4, differing, tmp_path) == [[]] * 4


def of_run(folder: Path, changes: dict[str, Any] | None = None, **how: Any) -> RunSpec:
    about = {"kind": "checkpoint", "item": "model", **how}
    return starting(make_spec({**SIZES, **(changes or {})}), folder, **about)


def read(spec: RunSpec) -> DecoderModel:
    decoder = make(decoder_of(spec), seed=9)
    assert spec.init_from is not None
    with pretended_world(1):
        load_initial_weights(decoder, spec, spec.init_from)
    return decoder


def test_a_checkpoint_is_named_by_step_item_and_place(tmp_path: Path) -> None:
    base_run(tmp_path / "base", SIZES)
    (name,) = [path.name for path in (tmp_path / "base/checkpoints/runs").iterdir()]
    in_store = tmp_path / "base/checkpoints/runs" / name
    for spec, seed in (
        (of_run(tmp_path / "base"), 6),
        (of_run(tmp_path / "base", step=3, item="ema"), 5),
        (of_run(in_store, step=3), 4),
    ):
        assert start_problems(spec, RunDir(tmp_path / "new")) == []
        assert_same(dict(read(spec).state_dict()), dict(make(decoder_of(spec), seed).state_dict()))


def test_a_checkpoint_that_its_run_has_left_behind_has_to_be_named(tmp_path: Path) -> None:
    base_run(tmp_path / "base", SIZES)
    base = RunDir(tmp_path / "base")
    (name,) = [path.name for path in (base.checkpoints / "runs").iterdir()]
    infos = list_run(base.checkpoints, name)
    spike = {"first_step": 8, "step": 8, "what": "", "first_position": 0, "end_position": 4}
    started = {"generation": 1, "world_size": 1, "samples": 9}
    with EventLog(base.events) as events:
        for info in infos:
            events.emit_kind("checkpoint_committed", step=info.step, id=info.id, store="")
        events.emit_kind("spike", **spike, is_left_out=True)
        events.emit_kind("training_started", step=3, **started)
    for step, seed in ((None, 4), (7, 6)):
        spec = of_run(base.path, step=step)
        assert start_problems(spec, RunDir(tmp_path / "new")) == []
        assert_same(dict(read(spec).state_dict()), dict(make(decoder_of(spec), seed).state_dict()))
    with EventLog(base.events) as events:
        events.emit_kind("spike", **spike, is_left_out=True)
        events.emit_kind("training_started", step=0, **started)
    problems = start_problems(of_run(base.path), RunDir(tmp_path / "new"))
    assert "the run has left all of them behind" in problems[-1]
    with pytest.raises(TrainingError, match="no checkpoint of run"):
        read(of_run(base.path))


def test_what_is_no_such_checkpoint_is_refused_before_and_after_the_start(tmp_path: Path) -> None:
    base_run(tmp_path / "base", SIZES)
    new = RunDir(tmp_path / "new")
    for spec, told in (
        (of_run(tmp_path / "base", step=4), "no checkpoint of step 4"),
        (of_run(tmp_path / "base", item="ema"), "no ema"),
        (of_run(tmp_path / "nothing"), "is not a run directory"),
        (of_run(tmp_path / "base", {"model.width": 128}), "model"),
        (of_run(tmp_path / "base", {"model.layers": 3}), "model"),
    ):
        (line,) = start_problems(spec, new)
        assert line.startswith(("init_from.", "model."))
        assert told in line
        with pytest.raises(TrainingError, match=told):
            read(spec)
    (line,) = start_problems(of_run(tmp_path / "elsewhere" / "base"), new)
    assert line.endswith(f"does not exist; did you mean {tmp_path / 'base'}?")
    both = of_run(tmp_path / "base", {"model.width": 128, "model.layers": 2})
    assert [line.split(":")[0] for line in start_problems(both, new)] == [
        "model.layers",
        "model.width",
    ]


def test_a_run_that_has_begun_is_not_looked_at_again(tmp_path: Path) -> None:
    spec = of_run(tmp_path / "nothing")
    run = RunDir(tmp_path / "new")
    assert start_problems(spec, run)
    checkpointer = Checkpointer(run.checkpoints, run=run_name(spec))
    checkpointer.save(1, {"model": make(decoder_of(spec), seed=1)})
    checkpointer.close()
    assert start_problems(spec, run) == []


def test_adapters_of_nothing_trained_are_refused(tmp_path: Path) -> None:
    (line,) = start_problems(make_spec(lora="default"), RunDir(tmp_path / "new"))
    assert line.startswith("lora: needs trained parameters")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"n_layer": 3}, ["n_layer is 3, and model.layers has 2"]),
        (
            {"n_head": 4, "vocab_size": 300},
            ["n_head is 4, and model.heads", "vocab_size is 300, and model.vocab has 257"],
        ),
        ({"activation_function": "relu"}, ['activation_function is "relu"']),
        ({"n_inner": 100}, ["n_inner is 100, and 4 x model.width is 256"]),
        ({"model_type": "llama"}, ["model_type is 'llama', and model.kind=gpt"]),
    ],
)
def test_other_sizes_in_a_folder_are_all_told(
    tmp_path: Path, changes: dict[str, Any], told: list[str]
) -> None:
    transformer("gpt", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    assert_told(folder_problems(tmp_path, decoder_of(make_spec())), told)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            ["scaled (rope_scaling: llama3)"],
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "head_dim": 32},
            ["rope_theta is 500000.0, and model.rope_theta has 10000.0", "head_dim is 32"],
        ),
        ({"tie_word_embeddings": True, "attention_bias": True}, ["tie_word", "attention_bias"]),
    ],
)
def test_other_sizes_of_a_llama_are_all_told(
    tmp_path: Path, changes: dict[str, Any], told: list[str]
) -> None:
    transformer("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    assert_told(folder_problems(tmp_path, decoder_of(make_spec(model="llama_nano"))), told)


def assert_told(found: list[str], told: list[str]) -> None:
    assert len(found) == len(told), found
    assert all(any(text in line for line in found) for text in told), found


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    size = decoder_of(make_spec())
    assert "has no config.json" in folder_problems(tmp_path, size)[0]
    transformer("gpt", tmp_path)
    shards = {path: load_file(path) for path in tmp_path.glob("model-*.safetensors")}
    for path in tmp_path.glob("model*"):
        path.unlink()
    assert "has no safetensors" in folder_problems(tmp_path, size)[0]
    (tmp_path / "pytorch_model.bin").touch()
    (line,) = folder_problems(tmp_path, size)
    assert "pickles can run any code" in line
    assert "save_pretrained" in line
    tensors = {name: tensor for some in shards.values() for name, tensor in some.items()}
    gone = tensors.pop("transformer.ln_f.bias")
    save_file(tensors | {"extra": gone}, tmp_path / "model.safetensors")
    assert_told(
        folder_problems(tmp_path, size),
        ["has no transformer.ln_f.bias, which is norm.bias here", "has extra"],
    )
    bad = tensors | {"transformer.ln_f.bias": gone[:5].clone()}
    save_file(bad, tmp_path / "model.safetensors")
    with pytest.raises(TrainingError, match=r"norm.bias has shape \[5\], and \[64\]"):
        begun(tmp_path, "gpt_nano")
