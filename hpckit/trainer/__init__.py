"""What runs in the process of each rank: the run loop, the training functions that come with
hpckit, validation and the signal guard. May import torch, config, rundir, events, checkpointing and
data; nothing on the login node or in the supervisor imports it at module level, except torch-free
modules started as programs."""
