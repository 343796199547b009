"""Tests of hpckit.evaluation."""
