"""StragglAR: an all-reduce that works while it waits for the last rank (arXiv 2505.23523).

An ordinary all-reduce begins when the last rank arrives. Here the n - 1 others reduce-scatter among
themselves meanwhile. When the straggler arrives, it exchanges one chunk per round with the owner of that
chunk. The other ranks spread the finished chunks.

Modules
-------
schedule
    The rounds, for any number of ranks; `spreading` searches for them.
cost
    Whether it is worth it: `predicted_saving` in seconds per step, and the reason if it is not.
execution, arrivals, measured_costs, ddp_hook
    The all-reduce on `torch.distributed`, the agreement on who is last, the measured costs of a group, and
    the DDP communication hook, which takes the faster all-reduce for each bucket. Only these import torch.

``model.register_comm_hook(StragglarState(straggler=3), ddp_hook)`` expects rank 3 to be last. Without
`straggler`, the rank that comes last is the straggler of that all-reduce. A wrong straggler costs time, not
correctness.

References
----------
.. [1] Devraj et al., "Efficient AllReduce with Stragglers", arXiv 2505.23523.
"""
