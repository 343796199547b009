"""The code that runs in the process of each rank.

A step passes through these files in this order: `worker` starts the training function, `rank_setup`
sets the rank up, `run_loop` has the loop, `run_checkpoints` resumes and saves, `rank_agreement`
agrees on requests, `run_records` records, and `validation` validates. `language_model` and `images`
are the training functions that come with hpckit.

This package may import torch, config, rundir, events, ipc, planner, checkpointing and data. Nothing
on the login node or in the supervisor imports it at module level, except torch-free modules that
are started as programs.
"""
