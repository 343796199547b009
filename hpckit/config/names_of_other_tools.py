"""Keys by the names that other tools have for them, for suggestions."""

from __future__ import annotations

_STEPS = "train.steps, a number of optimizer steps"
_BATCH = "train.global_batch, the samples of a step on all ranks"
_BATCH_RAMP = "train.batch_ramp, as {start: 32, increment: 32, samples: 100000}"
_SEQUENCE_RAMP = "train.sequence_ramp, as {start: 128, samples: 100000}"
_RANKS = "launch.nproc_per_node, the workers (one for each GPU) of a node"
_NAMES = {
    **dict.fromkeys(("epochs", "num_epochs", "max_epochs", "num_train_epochs"), _STEPS),
    **dict.fromkeys(("max_steps", "num_steps", "total_steps", "max_iters", "iterations"), _STEPS),
    **dict.fromkeys(("batch_size", "bs", "train_batch_size"), _BATCH),
    **dict.fromkeys(
        ("rampup_batch_size", "batch_size_rampup", "batch_size_warmup", "batch_size_scheduler"),
        _BATCH_RAMP,
    ),
    **dict.fromkeys(
        ("curriculum_learning", "seqlen_warmup", "seq_length_warmup", "sequence_length_warmup"),
        _SEQUENCE_RAMP,
    ),
    **dict.fromkeys(
        ("lr_warmup_samples", "lr_decay_samples"), "optim.schedule_unit=samples, with warmup_steps"
    ),
    "per_device_train_batch_size": "train.micro_batch, samples per forward pass of a rank",
    "gradient_accumulation_steps": "train.micro_batch, from which accumulation follows",
    **dict.fromkeys(("learning_rate", "max_lr"), "optim.lr"),
    **dict.fromkeys(("gpus", "num_gpus", "devices", "nproc", "ntasks_per_node"), _RANKS),
    **dict.fromkeys(("nnodes", "num_nodes"), "launch.nodes"),
    **dict.fromkeys(("num_workers", "dataloader_num_workers"), "data.threads"),
    **dict.fromkeys(("output_dir", "out_dir", "save_dir"), "root, the folder of all runs"),
    **dict.fromkeys(("save_steps", "save_interval", "save_every"), "checkpoint.every_steps"),
    **dict.fromkeys(("eval_steps", "eval_interval", "eval_every"), "train.validate_every"),
    **dict.fromkeys(("logging_steps", "log_interval"), "train.log_every"),
    **dict.fromkeys(("run_name", "job_name"), "name"),
    **dict.fromkeys(("script", "function", "main"), "entry, as entry=MODULE:FUNCTION"),
    **dict.fromkeys(("block_size", "context_length", "max_length"), "model.seq_len"),
    **dict.fromkeys(("time", "walltime"), "cluster.slurm.time_limit"),
    **dict.fromkeys(("mem", "mem_per_node"), "cluster.slurm.memory"),
    **dict.fromkeys(("cpus_per_task", "cpus"), "cluster.slurm.cpus_per_node"),
}


def key_for(name: str) -> str | None:
    """Returns the key, with what it means if that differs, for which another tool has this name;
    None: no known one."""
    return _NAMES.get(name.lower().replace("-", "_"))
