"""Memory of samples that is used again, instead of given back to the kernel and asked for anew."""

_BLOCK = 31 << 20


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, up to twice 31 MiB in each of its heaps.

    glibc begins by taking blocks of 128 KiB and more from the kernel each by itself, and by giving
    as much back as soon as it is free; each page is then faulted in and cleared again for the next
    sample, which takes longer than copying it from the page cache. Freeing one larger block, which
    costs nothing as long as nobody writes to it, raises both limits (mallopt(3), "dynamic mmap
    threshold"), as in any program that frees a large array. Other C libraries do not mind.
    """
    bytes(_BLOCK)
