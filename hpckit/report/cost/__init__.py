"""What a run has cost: node_hours divides the time of its jobs by cause, energy asks Slurm's
accounting, and cost_summary puts both into figures."""
