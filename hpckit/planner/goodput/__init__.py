"""How much of its time a job trains when things fail: save interval, closed-form prediction,
simulation. Imported by planner, faults and cli."""
