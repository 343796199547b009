"""A trained model exported by the command line: transformers loads it, and computes the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from checkpointing import Checkpointer, list_checkpoints
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import dump_spec
from hpckit.rundir.directory import RunDir, run_name
from hpckit.trainer.models.decoder import DecoderModel
from hpckit.trainer.models.lora import adapt, is_adapter
from hpckit.trainer.models.model_builder import make, materialise
from tests.integration.cli.ckpt_commands import ckpt, ok, refused
from tests.unit.hpckit.specs_and_processes import make_spec


def trained(run: RunDir, model: str, changes: dict[str, Any], lora: str = "none") -> DecoderModel:
    """A run directory with a checkpoint of a model, none of whose parameters is as it began."""
    spec = make_spec(changes, model=model, lora=lora)
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(spec))
    decoder = make(decoder_of(spec), seed=1)
    if spec.lora:
        adapt(decoder, decoder_of(spec), spec.lora)
        materialise(decoder, torch.device("cpu"), seed=1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    save(run, spec, decoder)
    return decoder


def save(run: RunDir, spec: RunSpec, model: Any) -> None:
    steps = len(list_checkpoints(run.checkpoints)) if run.checkpoints.exists() else 0
    checkpointer = Checkpointer(run.checkpoints, run=run_name(spec))
    checkpointer.save(steps + 3, {"model": model, "step": 3})
    checkpointer.close()


@pytest.mark.parametrize(
    ("model", "changes", "lora"),
    [
        ("gpt_nano", {}, "none"),
        ("llama_nano", {}, "none"),
        ("llama_nano", {"model.tied": True}, "none"),
        ("gpt_nano", {"lora.target_modules": ["mlp.up", "attention"]}, "default"),
        ("llama_nano", {"lora.rank": 3}, "default"),
    ],
)
def test_logits_are_the_same(
    tmp_path: Path, model: str, changes: dict[str, Any], lora: str
) -> None:
    torch.manual_seed(5)
    run, out = RunDir(tmp_path / "run"), tmp_path / "out"
    decoder = trained(run, model, changes, lora)
    text = ok(
        *("export", run.path, "latest", out, "--format", "huggingface", "--max-shard", "100KB")
    )
    assert "exported model of step 3" in text
    there = AutoModelForCausalLM.from_pretrained(out)
    tokens = torch.randint(0, 257, (2, 64))
    with torch.no_grad():
        expected, found = decoder(tokens), there(tokens).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    mine = sum(p.numel() for name, p in decoder.named_parameters() if not is_adapter(name))
    assert sum(p.numel() for p in there.parameters()) == mine


@pytest.mark.parametrize(
    ("model", "layers"),
    [("gpt_nano", ["mlp.up", "attention"]), ("llama_nano", ["attention.query", "mlp"])],
)
def test_adapters_alone_are_what_peft_adds_to_the_model(
    tmp_path: Path, model: str, layers: list[str]
) -> None:
    torch.manual_seed(5)
    run, out = RunDir(tmp_path / "run"), tmp_path / "out"
    decoder = trained(run, model, {"lora.target_modules": layers, "lora.alpha": 24.0}, "default")
    base = RunDir(tmp_path / "base")
    trained(base, model, {})
    save(base, make_spec(model=model), frozen(decoder))
    for place, form in ((base, "huggingface"), (run, "peft")):
        ok("export", place.path, "latest", out / form, "--format", form)
    there = AutoModelForCausalLM.from_pretrained(out / "huggingface")
    tokens = torch.randint(0, 257, (2, 64))
    with torch.no_grad():
        before = there(tokens).logits
        tuned = PeftModel.from_pretrained(there, out / "peft")
        expected, found = decoder(tokens), tuned(tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - before).std() > 0.01, "they matter"
    assert "out/peft/adapter_config.json already exists" in refused(
        "export", run.path, "latest", out / "peft", "--format", "peft"
    )
    assert "trains no adapters" in refused(
        "export", base.path, "latest", tmp_path / "none", "--format", "peft"
    )


def frozen(decoder: DecoderModel) -> dict[str, torch.Tensor]:
    """What it has without its adapters."""
    return {name: p for name, p in decoder.state_dict().items() if not is_adapter(name)}


def test_what_is_no_model_of_hpckits_is_refused(tmp_path: Path) -> None:
    run, out = RunDir(tmp_path / "run"), tmp_path / "out"
    trained(run, "gpt_nano", {})
    how = ("latest", out, "--format", "huggingface")
    assert "is not a run directory" in refused("export", run.checkpoints, *how)
    assert "no item 'ema'" in refused("export", run.path, *how, "--item", "ema")
    run.spec(1).write_text(dump_spec(make_spec({"model.layers": 3})))
    assert "'model/blocks.2" in refused("export", run.path, *how)
    run.spec(1).write_text(dump_spec(make_spec(model="gpt_moe_nano")))
    assert "a model with experts" in refused("export", run.path, *how)
    run.spec(1).write_text(dump_spec(make_spec({"entry": "mine:main"})))
    assert "a model of its own (mine:main)" in refused("export", run.path, *how)
    assert not out.exists() or list(out.iterdir()) == []
    run.spec(1).write_text(dump_spec(make_spec()))
    assert json.loads(ckpt("export", run.path, *how, "--json").stdout)["items"] == ["model"]
    assert "already" in refused("export", run.path, *how)


def test_a_run_is_named_as_in_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(RunDir(tmp_path / "runs/mine-1a2b3c4d"), "gpt_nano", {})
    monkeypatch.chdir(tmp_path)
    out = ok("export", "mine-1a2b3c4d", "latest", "out", "--format", "huggingface")
    assert "as huggingface" in out
    assert Path("out/config.json").is_file()
