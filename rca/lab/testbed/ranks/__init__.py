"""One rank of the job as processes: host and loader, and the device on which the host computes.

The host is like a training script: it dispatches kernels, joins collectives, collects garbage. The loader
reads and decodes batches. Without a GPU, a device process and a copy-engine process replace the GPU and its
PCIe link. With a GPU, the host drives it, and idle foreign processes share it.
"""
