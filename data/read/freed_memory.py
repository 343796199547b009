"""Reuse of freed memory for samples, instead of returning it to the kernel and allocating again."""

_BLOCK = 31 << 20


def keep_freed_memory() -> None:
    """Let the C library keep freed memory, up to twice 31 MiB in each of its heaps.

    By default glibc allocates each block of 128 KiB and more from the kernel and returns it as soon
    as it is freed; each page is then faulted in and cleared again for the next sample, which takes
    longer than copying it from the page cache. Freeing one larger block, which costs nothing as
    long as it is not written to, raises both limits (mallopt(3), "dynamic mmap threshold"), as in
    any program that frees a large array. Other C libraries are not affected.
    """
    bytes(_BLOCK)
