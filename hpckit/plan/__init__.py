"""What a run will need, told before it starts: memory, time, how often to save. Without torch."""
