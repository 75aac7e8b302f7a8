"""STAR: groups of workers that update the model without waiting for stragglers (arXiv 2512.09685).

Modules
-------
modes
    Synchronous, x-order and grouped updates, and the seconds per unit of progress of each.
noise
    The gradient noise scale, which decides how many samples an update can use.
prediction
    Step times of the next step from CPU and bandwidth, and who is a straggler.
placement
    Workers and parameter servers on nodes, so that no CPU or link is overloaded up front.
ring_with_children, parameter_server
    Training on `torch.distributed`: a DDP communication hook whose ring does not wait for stragglers, and
    x-order updates with a parameter server. Only these import torch.

The price of a mode counts neither staleness nor messages. Measured speeds are below it: see
`benchmarks/star.py`.

References
----------
.. [1] "STAR", arXiv 2512.09685.
"""
