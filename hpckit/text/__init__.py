"""Texts for numbers, sizes and times, those of Slurm too, and values that JSON can hold. This
package imports nothing of hpckit."""
