"""Decides who may save or read in a store: sessions, their leases, the owner of a run, takeover,
and saves that were left complete but uncommitted; all of `store` and the service import it."""
