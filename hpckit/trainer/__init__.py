"""The code that runs in the process of each rank: the run loop, the training functions that come
with hpckit, validation and the signal guard. It may import torch, config, rundir, events,
checkpointing and data. Nothing on the login node or in the supervisor imports it at module level,
except torch-free modules that are started as programs."""
