"""Where the time of a run's steps went and what limits its speed. Imports history and progress of
report. Imported by the rest of report, by faults and by benchmarks."""
