"""Many faults in runs of its own, by a seeded schedule, judged by an oracle, and the workload that
they train. Imports hpckit.faults. Imported by cli and benchmarks."""
