"""Trainers by chance: whatever a program is made of, what comes back is what was saved.

A program is modules, optimizers, schedulers, a scaler, an average and values, wrapped in one of
torch's ways, on 1 to 4 ranks. It trains and saves; programs that were changed by chance restore it.
The oracle is torch's own state dicts of the first program. All follows from a seed:

    python -m tests.trainers --seed 1234       # one program with all of its changes
    python -m tests.trainers --cases 10000     # as many as one has time for
"""
