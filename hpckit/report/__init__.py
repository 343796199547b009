"""What a run has been through, told from its own records: events, ledger, checkpoints."""
