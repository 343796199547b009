"""Fine-tunes a small GPT-2 on Python's own source code, by Hugging Face's Trainer."""

import argparse
import os
from pathlib import Path

import torch
from hpckit.integrations.huggingface import HpckitTrainerCallback, newest_checkpoint
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

BLOCK = 32


class Windows(Dataset):
    """The source code of the json package as bytes, in windows of `BLOCK` tokens."""

    def __init__(self, begin, end):
        files = sorted((Path(os.__file__).parent / "json").glob("*.py"))
        tokens = torch.tensor(list(b"".join(path.read_bytes() for path in files)))
        self.windows = tokens[: len(tokens) // BLOCK * BLOCK].view(-1, BLOCK)[begin:end]

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        return {"input_ids": self.windows[index], "labels": self.windows[index]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    parser.add_argument("--epochs", type=float, default=3)
    args = parser.parse_args()

    set_seed(0)
    # a real program has GPT2LMHeadModel.from_pretrained(...) here
    config = GPT2Config(vocab_size=256, n_positions=BLOCK, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    training_args = TrainingArguments(
        output_dir=args.out,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        eval_strategy="epoch",
        logging_steps=5,
        save_steps=20,
        save_total_limit=2,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model,
        training_args,
        train_dataset=Windows(0, 640),
        eval_dataset=Windows(640, 704),
        callbacks=[HpckitTrainerCallback()],
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.out))
    trainer.save_model(f"{args.out}/final")


if __name__ == "__main__":
    main()
