"""Certified checkpoints: at some save steps, ranks compute a micro-batch of another rank again and
compare the gradients. fault_finding decides who was wrong, check_schedule when the next check is
due, doubtful_checkpoints which checkpoints are not used after a difference, with checks or without;
gradient_capture and batch_exchange compute, and computation_check does it all. Imports events and
other rooms of the trainer. Only `hpckit.trainer` imports it."""
