"""STAR with a parameter server, which is rank 0: it updates when two workers have reported."""

import torch
import torch.distributed as dist

from rca.runtime.star.grouping import XOrder
from rca.runtime.star.parameter_server import serve, work

dist.init_process_group("gloo")
workers = dist.get_world_size() - 1
parameters = torch.zeros(20)


def update(gradient, n_reports):
    parameters.sub_(0.01 * n_reports / workers * gradient)


def gradient():
    x = torch.randn(32, 20)
    return 2 * x.T @ (x @ parameters - x.sum(dim=1)) / 32


if dist.get_rank() == 0:
    reports = serve(parameters, workers, XOrder(2), update, lambda n_updates: n_updates == 100)
    print(len(reports.applied), "updates; workers that ended:", reports.lost)
else:
    work(parameters, gradient)
dist.destroy_process_group()
