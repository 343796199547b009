"""Services that show the metrics of many runs: told beside training, and never waited for."""
