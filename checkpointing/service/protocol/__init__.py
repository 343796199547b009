"""Defines the unix socket between trainers and the service: address, lock, frames, messages, send
queue."""
