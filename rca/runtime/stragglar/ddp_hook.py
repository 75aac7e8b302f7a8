"""StragglAR as a communication hook of `DistributedDataParallel`.

DDP inspects the annotations of a hook, so they are not postponed in this module.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor

from rca.runtime.stragglar.arrivals import Arrivals
from rca.runtime.stragglar.cost import GroupCosts
from rca.runtime.stragglar.execution import all_reduce, check_straggler
from rca.runtime.stragglar.measured_costs import measured_costs
from rca.runtime.stragglar.point_to_point import group_of


class StragglarState:
    """Arguments of `ddp_hook`, and who was last.

    Parameters
    ----------
    straggler
        Rank within the group that is expected to be last, for example from a diagnosis. None for the eager
        mode: in each all-reduce the rank that arrives last is the straggler.
    group
        The default group if None.
    costs
        Measured if not given, which takes about a second; the same on all ranks.

    Attributes
    ----------
    stragglers
        How often each rank was the straggler. After some eager steps it shows whether one rank is persistent.
    n_ordinary
        Buckets that were reduced by the group's ordinary all-reduce, because that is faster for their size.
    """

    def __init__(
        self,
        straggler: int | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        costs: GroupCosts | None = None,
    ) -> None:
        self.group = group_of(group)
        if straggler is not None:
            check_straggler(straggler, self.group.size())
        self.straggler = straggler
        self.arrivals = Arrivals(self.group)
        agree = self.arrivals.last if straggler is None else None
        self.costs = costs or measured_costs(self.group, straggler, agree)
        self.stragglers: Counter[int] = Counter()
        self.n_ordinary = 0
        # One thread keeps the order of the buckets, which all ranks share, and leaves backward running.
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="stragglar")

    def average(self, gradients: Tensor) -> None:
        """Replace the gradients by their mean over the group."""
        gradients.div_(self.group.size())
        if not self.costs.is_faster(gradients.numel() * gradients.element_size()):
            self.n_ordinary += 1
            dist.all_reduce(gradients, group=self.group)
            return
        straggler = self.arrivals.last() if self.straggler is None else self.straggler
        self.stragglers[straggler] += 1
        all_reduce(gradients, straggler, self.group)


def ddp_hook(state: StragglarState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients with StragglAR.

    Run with gloo on CPUs. The path of CUDA tensors has not been run on several GPUs.

    Examples
    --------
    ``model.register_comm_hook(StragglarState(straggler=3), ddp_hook)``
    """
    gradients = bucket.buffer()
    if gradients.is_cuda:
        return _enqueued(state, gradients)
    done: torch.futures.Future[Tensor] = torch.futures.Future()

    def run() -> None:
        try:
            state.average(gradients)
        except Exception as error:  # DDP raises it in the thread that waits.
            done.set_exception(error)
        else:
            done.set_result(gradients)

    state.worker.submit(run)
    return done


def _enqueued(state: StragglarState, gradients: Tensor) -> torch.futures.Future[Tensor]:
    """Enqueue the messages on the device's streams; the calling thread does not wait for them."""
    if state.straggler is None:
        # A rank arrives when its gradients exist, not when their kernels are enqueued.
        torch.cuda.current_stream(gradients.device).synchronize()
    done: torch.futures.Future[Tensor] = torch.futures.Future(devices=[gradients.device])
    state.average(gradients)
    done.set_result(gradients)
    return done
