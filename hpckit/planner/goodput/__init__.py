"""The share of its time that a job trains despite failures: save interval, closed-form prediction,
simulation."""
