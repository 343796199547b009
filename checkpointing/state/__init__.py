"""Adapters between the objects of a trainer (modules, optimizers, per-rank objects, random number
generators, plain values) and named leaves, and the comparison of a state's structure with a
checkpoint's. Imports `format`, `layout`, `ranks`, `store.checkpoint` and `staging.tensor_copy`.
Only `checkpointing`, `checkpointing.save`, `checkpointing.restore`, `checkpointing.integrations`
and `hpckit.submit.composition` import it."""
