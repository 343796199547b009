"""Real processes, disks and servers that fail while a store is used."""
