"""Spikes of the loss: spike_detection finds them in the stream of steps, rollback_plan decides from
which position samples are left out, spike_monitor does both in the run loop, and past_rollbacks
keeps to what was decided, whether spikes are looked for or not. Imports events and other rooms of
the trainer. Only `hpckit.trainer` and `hpckit.faults` import it."""
