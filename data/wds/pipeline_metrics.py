"""Where the time of a pipeline goes: in reads, in its stages, or in its consumer."""

import time
from collections.abc import Generator, Iterator

from data.read.loader_metrics import LoaderMeter
from data.wds.pipeline_source import ShareRead
from data.wds.stages.stage_runner import PipelineItem


class MeteredPass:
    """The meter of one pass. A consumer that asks for an item waits for its bytes, then for the
    stages, in one thread."""

    def __init__(self, meter: LoaderMeter) -> None:
        self._meter = meter
        self._waited_s = 0.0  # for bytes

    def reads(self, reads: Iterator[ShareRead]) -> Iterator[ShareRead]:
        """Yield the reads, and count the time waited for them."""
        while True:
            began_s = time.perf_counter()
            read = next(reads, None)
            self._waited_s += time.perf_counter() - began_s
            if read is None:
                return
            self._meter.read(read.batch, read.times)
            yield read

    def made(
        self, made: Generator[PipelineItem, None, None]
    ) -> Generator[PipelineItem, None, None]:
        """Yield the items made of `reads`, and count the rest of the time as work of the stages."""
        last_s = time.perf_counter()
        try:
            while True:
                began_s, bytes_s = time.perf_counter(), self._waited_s
                one = next(made, None)
                now_s = time.perf_counter()
                wait_s = now_s - began_s
                self._meter.waited(
                    wait_s=wait_s,
                    elapsed_s=now_s - last_s,
                    transform_s=max(0.0, wait_s - (self._waited_s - bytes_s)),
                )
                last_s = now_s
                if one is None:
                    return
                yield one
        finally:
            made.close()
