"""Spreading models and their training over ranks."""
