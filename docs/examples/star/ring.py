"""STAR on a ring: a rank that gets slow leaves it, and comes back when it is at speed."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rca.runtime.star.leaving import StragglersLeave
from rca.runtime.star.ring_with_children import ddp_hook
from rca.runtime.star.switching_ring import SwitchingRing

dist.init_process_group("gloo")
model = torch.nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = SwitchingRing(model, optimizer, StragglersLeave(batch=32, noise=300))
ddp = DistributedDataParallel(model, process_group=state.group)
ddp.register_comm_hook(state, ddp_hook)
x = torch.randn(1024, 20)
y = x.sum(dim=1, keepdim=True)
while state.goes_on(100):  # updates
    chosen = torch.randint(1024, (32,))
    optimizer.zero_grad()
    optimizer.param_groups[0]["lr"] = 0.01 * len(state.ring) / dist.get_world_size()
    torch.nn.functional.mse_loss(ddp(x[chosen]), y[chosen]).backward()
    optimizer.step()
    state.after_step()
state.close()
print(dist.get_rank(), state.ledger.updates, state.changes)
dist.destroy_process_group()
