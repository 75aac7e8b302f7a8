"""One rank of the job as four processes: host, loader, device and copy engine.

The host is what a training script is: it dispatches kernels, joins collectives, collects garbage. The
device stands in for a GPU, the copy engine for its PCIe link; the loader reads and decodes batches.
"""
