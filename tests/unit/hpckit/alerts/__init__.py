"""Tests of hpckit.alerts."""
