"""Determines which rank holds, saves and reads which box of which tensor, by pure functions of
meshes and placements that give the same answer on every rank. Imports `format`, `dtypes` and
`errors` alone, and `state`, `save`, `restore` and hpckit's trainer import it."""
