"""Pipelines of webdataset over our order, cache and state.

    dataset = from_wds(wds.WebDataset(urls, shardshuffle=100).decode("rgb").batched(32))
    loader = WebLoader(dataset, num_workers=4)          # or DataLoader(dataset, batch_size=None)
    state = loader.state_dict()                         # one position, the same on every rank

`StreamingDataset` (data.wds.dataset) is the source with webdataset's own fluent methods, `from_wds`
(data.wds.convert) exchanges the source half of an existing pipeline and keeps the rest, `WebLoader`
(data.wds.loader) runs either in worker processes, `per_sample` (data.wds.kinds) marks stages of
one's own. They need webdataset; WebLoader needs torch.

| stage of webdataset                            | here                                            |
| ---------------------------------------------- | ----------------------------------------------- |
| decode, map, map_dict, map_tuple, to_tuple,    | kept, and run as they are                       |
| rename, rename_keys, extract_keys, xdecode, …  |                                                 |
| per_sample(generator)                          | kept; it gives one for one, or none             |
| batched(n)                                     | a step: n times the ranks is the global batch   |
| select, rsample, map to None                   | kept: the batch shrinks; rsample by position    |
| handler=ignore_and_continue, warn_and_continue | left out, counted, with a budget                |
| handler=ignore_and_stop, warn_and_stop         | refused: an epoch does not end silently         |
| shuffle, shardshuffle, detshuffle              | replaced by the order: streams and window       |
| split_by_node, split_by_worker, nodesplitter   | replaced: any ranks, any workers                |
| resampled=True                                 | replaced by an order without end                |
| with_epoch(n), repeat                          | passes of n items on each rank                  |
| mcached, lmdb_cached                           | refused: the cache is one of shards             |
| unbatched, unlisted, slice, other generators   | refused; with exact=False they run, and the     |
|                                                | state counts the samples that went in: what     |
|                                                | stages hold back is lost                        |

An item counts as delivered when the consumer has it. `WebLoader` and the dataset itself give states
that go on with any ranks, workers and batches. A StatefulDataLoader works too, with as many workers
as before; `dataset.load_state_dict(its state)` takes its state to any other number. A plain
`DataLoader` goes through pass after pass, but cannot say where it stands; there an iteration that
is broken off is over, and an endless one begins again. A pipeline that is not batched has the same
order under `DataLoader(batch_size=n)` with any number of workers if `global_batch` is n times the
ranks; without it, one step is one sample of each rank.

Workers that are forked cannot fetch over the network if the process that started them did: a
dataset of URLs is opened first in its workers, so ask it nothing (`samples`, `state_dict`) before
they run, or start them by "spawn" or "forkserver", which needs stages that can be pickled.
"""
