"""Defines the unix socket between trainers and the service: address, lock, frames, messages, send
queue; the client and the server import it."""
