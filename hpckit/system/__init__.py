"""Access to the operating system and to remote storage that does not depend on runs: child
processes, atomic files, error texts, private folders, and timeouts of interactive commands. This
package imports no other package of hpckit."""
