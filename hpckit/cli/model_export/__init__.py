"""`hpckit ckpt export --format huggingface` and `peft`: checkpoints of hpckit's own models in other
libraries' formats. Imported by cli.ckpt.export, inside functions; only merged_adapters imports
torch."""
