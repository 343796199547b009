"""Hugging Face: a Trainer that can be killed at any time and resumes when it is started again.

python -m checkpointing.examples.huggingface_trainer --root /tmp/ckpts
"""

import argparse
from typing import Any

import torch
from transformers import (  # type: ignore[import-not-found, unused-ignore]
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

from checkpointing import Last, Minutes, Steps
from checkpointing.integrations.huggingface import CheckpointerTrainerCallback


class LossPrinter(Trainer):  # type: ignore[misc, unused-ignore]
    """Prints each step's loss to the last bit."""

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        print(f"step {self.state.global_step + 1} loss {float(loss).hex()}", flush=True)
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, help="the store: a folder or s3://bucket/folder")
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=2)
    )
    tokens = torch.randint(128, (160, 32))
    saver = CheckpointerTrainerCallback(
        args.root,
        run="huggingface",
        metrics=["eval_loss"],
        every=Steps(7) | Minutes(10),
        keep=[Last(3)],
    )
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=f"{args.root}-output",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=8,
        eval_strategy="epoch",
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = LossPrinter(model, arguments, train_dataset=data, eval_dataset=data[:16])
    saver.train(trainer)


if __name__ == "__main__":
    main()
