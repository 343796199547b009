"""Programs to begin with, which the tests run, kill and run again."""
