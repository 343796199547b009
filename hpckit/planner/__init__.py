"""Estimates what a run will need before it starts: memory, time and the save interval; without
torch. Imports config and text."""
