"""Spikes of the loss: spike_detection finds them in the stream of steps, rollback_plan decides from
which position samples are left out, and spike_monitor does both in the run loop. Imports events and
other rooms of the trainer, and only the run loop imports it."""
