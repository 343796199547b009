"""Starts, stops and talks to the node's service from a trainer or the supervisor."""
