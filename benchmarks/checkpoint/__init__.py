"""Benchmarks of saving and restoring a training state, compared with torch DCP, torchsnapshot and
torch_checkpointing. They import benchmarks.common and benchmarks.store."""
