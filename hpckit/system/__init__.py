"""What hpckit needs of the operating system and of remote storage, whatever run it is for (child
processes, atomic files, error texts, private folders, timeouts of interactive commands). Imports no
room of hpckit, and all may import it."""
