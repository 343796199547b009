"""Decides who may save or read in a store: sessions, their leases, the owner of a run, takeover,
and saves that were left complete but uncommitted."""
