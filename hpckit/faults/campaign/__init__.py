"""Campaigns: many faults by a seeded schedule in runs made for it, judged by an oracle, and the
workload that the runs train. Imports hpckit.faults."""
