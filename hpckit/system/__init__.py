"""Access to the operating system and to remote storage, independent of runs (child processes,
atomic files, error texts, private folders, timeouts of interactive commands). Imports no other
package of hpckit, and all may import it."""
