"""STAR: groups of workers that update the model without waiting for stragglers (arXiv 2512.09685).

Modules
-------
modes
    Synchronous, x-order and grouped updates, and the best of them.
price, arrivals
    Seconds per unit of progress of a mode: waiting for steps that vary, the server's work, gradient noise and
    staleness.
grouping
    Which reports make an update: x of them, or those of a group; groups that follow the times.
selector
    A learned choice of the mode.
calibration, capacity
    A choice during training, with prices corrected by the first steps of each mode; what the machine of a
    server can take beside its other tasks.
simulation
    Runs of a mode with steps that vary, pauses and a busy server.
noise
    The gradient noise scale, which decides how many samples an update can use.
usual_step
    The usual step of each worker, and who is a straggler.
leaving
    Which ranks leave a ring.
learning_rate
    The learning rate of the largest progress, to compare one's own with.
ring_with_children, switching_ring, parameter_server
    Training on `torch.distributed`: a DDP communication hook whose ring does not wait for stragglers, from
    the start or when they appear, and x-order and grouped updates with a parameter server. Only these and
    `learning_rate` import torch.

`benchmarks/star.py` measures speeds beside the price.

References
----------
.. [1] "STAR", arXiv 2512.09685.
"""
