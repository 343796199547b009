"""Trains a small GPT-2 with Hugging Face's Trainer.

hpckit launch launch.nproc_per_node=2 -- python huggingface_program.py
"""

import argparse
import time
from typing import Any

import torch
from transformers import (  # type: ignore[import-not-found, unused-ignore]
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hpckit.integrations.huggingface import HpckitCallback, newest_checkpoint


class LossPrinter(Trainer):  # type: ignore[misc, unused-ignore]
    """Prints each step's loss on each rank, to the last bit."""

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        time.sleep(arguments.step_s)
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        print(f"step {self.state.global_step + 1} loss {float(loss).hex()}", flush=True)
        return loss


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", required=True, help="the folder of the checkpoints")
parser.add_argument("--step-s", type=float, default=0.0, help="least seconds of a step")
arguments = parser.parse_args()

set_seed(0)
config = GPT2Config(
    vocab_size=128, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
tokens = torch.randint(128, (320, 16), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": row, "labels": row} for row in tokens]
training_args = TrainingArguments(
    output_dir=arguments.output,
    num_train_epochs=3,
    per_device_train_batch_size=8,
    eval_strategy="epoch",
    save_steps=10,
    save_total_limit=2,
    logging_steps=1,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = LossPrinter(
    GPT2LMHeadModel(config),
    training_args,
    train_dataset=data,
    eval_dataset=data[:32],
    callbacks=[HpckitCallback()],
)
trainer.train(resume_from_checkpoint=newest_checkpoint(training_args.output_dir))
trainer.save_model(f"{arguments.output}/final")
print("the end of the script", flush=True)
