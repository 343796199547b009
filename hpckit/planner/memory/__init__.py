"""Bytes of a GPU's memory by category and moment of a step, and the simplest parallel layout that
fits. Imports hpckit.planner.model, planner's gpu_cards and assumptions."""
