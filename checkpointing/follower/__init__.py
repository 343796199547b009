"""Follows a run in a store: takes the weights of newly committed steps, fetches only what has
changed, and gives each step whole to shared memory, safetensors files or a function. Does not
import torch before a tensor is asked for. Only `checkpointing` and `hpckit.cli.ckpt` import it."""
