"""`hpckit ckpt export --format huggingface` and `peft`: checkpoints of hpckit's own models in other
libraries' formats. cli.ckpt.export imports it inside functions; only merged_adapters imports
torch."""
