"""One rank of the job as processes: host and loader, and what the host computes on.

The host is what a training script is: it dispatches kernels, joins collectives, collects garbage. The loader
reads and decodes batches. Without a GPU, a device process stands in for it and a copy-engine process for its
PCIe link; with one, the host drives it itself, and foreign processes wait on it for their part.
"""
