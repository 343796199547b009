"""Tests of checkpointing/follower."""
