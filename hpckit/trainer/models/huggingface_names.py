"""The names and configs of the decoders as models of Hugging Face's transformers, GPT2LMHeadModel
and LlamaForCausalLM."""

from __future__ import annotations

from typing import Any

from checkpointing.interop.tensor_forms import TensorForm
from hpckit.config.spec import DecoderSpec, GptSpec, LlamaSpec


def config(size: DecoderSpec, dtype: str) -> dict[str, Any]:
    """Return the content of config.json for weights of `dtype`, by torch's name for it."""
    about = _llama_config(size) if isinstance(size, LlamaSpec) else _gpt_config(size)
    return {**about, "vocab_size": size.vocab, "dtype": dtype}


def forms(size: DecoderSpec, item: str) -> dict[str, TensorForm]:
    """Return the form in which each tensor is written, by the name that it has in checkpoints as
    part of `item`."""
    found = _llama_forms(size) if isinstance(size, LlamaSpec) else _gpt_forms(size)
    return {f"{item}/{name}": form for name, form in found.items()}


def _gpt_config(size: GptSpec) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": size.layers,
        "n_head": size.heads,
        "n_embd": size.width,
        "n_positions": size.seq_len,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }


def _gpt_forms(size: GptSpec) -> dict[str, TensorForm]:
    """Return the forms of GPT-2, whose layers are Conv1D with transposed weights."""
    found = {
        "embedding.token.weight": TensorForm("transformer.wte.weight"),
        "embedding.position.weight": TensorForm("transformer.wpe.weight"),
        "norm.weight": TensorForm("transformer.ln_f.weight"),
        "norm.bias": TensorForm("transformer.ln_f.bias"),
    }
    for number in range(size.layers):
        here, there = f"blocks.{number}", f"transformer.h.{number}"
        heads = (
            size.heads,
            3,
        )  # here by head, then query, key, value; there all queries come first
        for kind, is_transposed in (("weight", True), ("bias", False)):
            found |= {
                f"{here}.norm_attention.{kind}": TensorForm(f"{there}.ln_1.{kind}"),
                f"{here}.norm_mlp.{kind}": TensorForm(f"{there}.ln_2.{kind}"),
                f"{here}.attention.qkv.{kind}": TensorForm(
                    f"{there}.attn.c_attn.{kind}", heads, is_transposed
                ),
                f"{here}.attention.out.{kind}": TensorForm(
                    f"{there}.attn.c_proj.{kind}", is_transposed=is_transposed
                ),
                f"{here}.mlp.up.{kind}": TensorForm(
                    f"{there}.mlp.c_fc.{kind}", is_transposed=is_transposed
                ),
                f"{here}.mlp.down.{kind}": TensorForm(
                    f"{there}.mlp.c_proj.{kind}", is_transposed=is_transposed
                ),
            }
    return found


def _llama_config(size: LlamaSpec) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "hidden_size": size.width,
        "intermediate_size": size.hidden,
        "max_position_embeddings": size.seq_len,
        "hidden_act": "silu",
        "rms_norm_eps": size.norm_eps,
        "rope_theta": size.rope_theta,  # for transformers before 5, and other readers
        "rope_parameters": {"rope_type": "default", "rope_theta": size.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": size.tied,
    }


def _llama_forms(size: LlamaSpec) -> dict[str, TensorForm]:
    found = {
        "embedding.token.weight": TensorForm("model.embed_tokens.weight"),
        "norm.weight": TensorForm("model.norm.weight"),
    }
    if not size.tied:
        found["output.weight"] = TensorForm("lm_head.weight")
    names = {
        "norm_attention": "input_layernorm",
        "norm_mlp": "post_attention_layernorm",
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.out": "self_attn.o_proj",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
    }
    for number in range(size.layers):
        for here, there in names.items():
            found[f"blocks.{number}.{here}.weight"] = TensorForm(
                f"model.layers.{number}.{there}.weight"
            )
    return found
