"""The files of a cache folder: their names and permission marks, records beside them, kernel locks,
file handles, the type of the file system, and what happens when the disk fails. Imports data.source
(address, protocol, file) and data.cache.cache_metrics, and no other room of data.cache."""
