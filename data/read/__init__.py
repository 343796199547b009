"""The loader: an open dataset, the stream of samples, batches, the policy for bad samples, and
transfer to the device. Imports index, order, cache and source, and data.wds and data.write may
import it."""
