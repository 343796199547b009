"""What a run will need before it starts: memory, time, how often to save; without torch. Imports
config and text; submit, trainer (FLOPs), faults and cli import it."""
