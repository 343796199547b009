"""Determines which rank holds, saves and reads which box of which tensor, by pure functions of
meshes and placements that give the same answer on every rank. Of the other folders it imports
`format` alone."""
