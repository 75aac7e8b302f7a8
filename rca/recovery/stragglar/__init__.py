"""StragglAR: an all-reduce that works while it waits for the last rank (arXiv 2505.23523).

`schedule` builds the rounds, `checker` proves them right, `cost` predicts what they save. `execution` and
`ddp_hook` run them on `torch.distributed`; only these two import torch.
"""
