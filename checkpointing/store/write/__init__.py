"""Writes what a rank saves: cut into tiles, hashed, referred to or encoded, packed, committed."""
