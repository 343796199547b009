"""What a run is: its spec, its directory, its events, its lock. Imports nothing of hpckit."""
