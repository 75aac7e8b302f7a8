"""STAR on real gloo processes: four of them run all cases once, and every test reads the results."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="STAR runs on torch.distributed; PyTorch is not installed")

pytestmark = pytest.mark.system
dist = torch.distributed

from rca.errors import InvalidInput  # noqa: E402
from rca.runtime.star.arrivals import MAX_STEPS  # noqa: E402
from rca.runtime.star.grouping import SeenTimes, XOrder  # noqa: E402
from rca.runtime.star.parameter_server import serve, work  # noqa: E402
from rca.runtime.star.ring_with_children import RingWithChildren, ddp_hook  # noqa: E402

WORLD, CHILD = 4, 3
TIMEOUT = timedelta(seconds=60)
#: Updates of the ring alone, before the child may send its first gradient, and afterwards.
ALONE, TOGETHER = 5, 12
#: Steps after which a gradient of the child is there for the next update.
MEETINGS = (ALONE + 1, ALONE + 4, ALONE + 6, ALONE + 8)
#: Each gradient is 1 at a place of its own, so that the sum shows which were applied, and how often.
PLACES_OF_RANK = 40

Result = dict[str, Any]


class Marked(torch.nn.Module):
    """A model whose gradient is 1 at one place. Two parameters make two buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(2 * PLACES_OF_RANK))
        self.second = torch.nn.Parameter(torch.zeros(2 * PLACES_OF_RANK))

    def forward(self, place: int) -> torch.Tensor:
        mark = torch.zeros(4 * PLACES_OF_RANK)
        mark[place] = 1.0
        return (torch.cat((self.first, self.second)) * mark).sum()


def marked(rank: int, *, most_staleness: int = 1000) -> Result:
    """The ring trains alone, then with a child; the child's gradients go where they must."""
    store = dist.PrefixStore(f"marked-{most_staleness}", dist.group.WORLD.get_group_store())
    model = Marked()
    state = RingWithChildren(list(model.parameters()), [CHILD], most_staleness=most_staleness)
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=state.group, bucket_cap_mb=1e-4)
    ddp.register_comm_hook(state, ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = 0
    while not state.over and step < ALONE + TOGETHER:
        loss = ddp(PLACES_OF_RANK * rank + step)
        if state.is_child and step == 0:
            store.wait(["alone"], TIMEOUT)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.after_step()
        step += 1
        if rank == 0 and step == ALONE:
            store.set("alone", "done")
        if step in MEETINGS:
            meet(store, state)
    state.close()
    values = torch.cat((model.first, model.second)).detach()
    return {"steps": step, "values": values.tolist(), "ledger": state.ledger, "is over": state.over}


def meet(store: dist.Store, state: RingWithChildren) -> None:
    """Let the parent begin its next update only when a gradient has arrived: the test waits, not the ring."""
    for _ in range(100_000 if state.mine else 0):
        if state.arrived:
            return
        store.add("polls", 1)


def averages(rank: int, stragglers: list[int] | None) -> list[float]:
    """Gradient of a small model, by torch's all-reduce or by the hook without children."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(24, 24) for _ in range(3)]
    model = torch.nn.Sequential(*layers)
    state = None if stragglers is None else RingWithChildren(list(model.parameters()), stragglers)
    ddp = torch.nn.parallel.DistributedDataParallel(
        model, process_group=state.group if state else None, bucket_cap_mb=0.003
    )
    if state:
        ddp.register_comm_hook(state, ddp_hook)
    for step in range(3):
        inputs = torch.randn(4, 24, generator=torch.Generator().manual_seed(10 * rank + step))
        model.zero_grad()
        ddp(inputs).square().sum().backward()
    return torch.cat([each.grad.flatten() for each in model.parameters()]).tolist()


def served(rank: int, order: int, n_updates: int, most_staleness: int | None = None) -> Result:
    """A parameter server on rank 0; the gradient of worker w is ``parameters - w``."""
    parameters = torch.zeros(3)
    if rank:
        sent = work(parameters, lambda: parameters - rank)
        return {"sent": sent, "values": parameters.tolist()}

    def update(gradient: torch.Tensor, n_reports: int) -> None:
        assert n_reports == order
        parameters.sub_(0.1 * gradient)

    reports = serve(
        parameters,
        WORLD - 1,
        XOrder(order),
        update,
        lambda done: done == n_updates,
        most_staleness=most_staleness,
    )
    return {"reports": reports, "values": parameters.tolist()}


def seen_times(rank: int) -> Result:
    """What a server measures whose update takes 6 ms; the last worker takes 30 ms for a gradient."""
    parameters = torch.zeros(3)
    if rank:

        def gradient() -> torch.Tensor:
            time.sleep(0.03 if rank == WORLD - 1 else 0.0)
            return parameters

        work(parameters, gradient)
        return {}
    seen: list[SeenTimes] = []
    serve(
        parameters,
        WORLD - 1,
        XOrder(WORLD - 1),
        lambda *_: time.sleep(0.006),
        lambda done: done == 20,
        choose=lambda *given: seen.append(given[-1]),  # type: ignore[arg-type, func-returns-value]
    )
    return {"seen": seen[-1]}


def refusals() -> Result:
    def refused(call: Callable[[], object]) -> str:
        try:
            call()
        except InvalidInput as error:
            return error.message
        return ""

    weights = [torch.zeros(2)]
    return {
        "all": refused(lambda: RingWithChildren(weights, range(WORLD))),
        "unknown": refused(lambda: RingWithChildren(weights, [WORLD])),
        "half": refused(lambda: RingWithChildren([torch.zeros(2, dtype=torch.bfloat16)], [CHILD])),
        "order": refused(lambda: serve(weights[0], 3, XOrder(4), lambda *_: None, lambda _: True)),
    }


def run(rank: int, ports: Any, results: Any) -> None:
    torch.set_num_threads(1)
    try:
        # The first rank holds the store: no process is forked while the store's thread runs.
        port = 0 if rank == 0 else ports.get(timeout=TIMEOUT.seconds)
        store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=TIMEOUT, wait_for_workers=False)
        for _ in range(WORLD - 1 if rank == 0 else 0):
            ports.put(store.port)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=TIMEOUT)
        found = {
            "marked": marked(rank),
            "strict": marked(rank, most_staleness=3),
            "plain": averages(rank, None),
            "hook": averages(rank, []),
            "order 1": served(rank, 1, 20),
            "order 2": served(rank, 2, 20),
            "order 3": served(rank, 3, 20),
            "seen": seen_times(rank),
            "fresh": served(rank, 1, 20, most_staleness=0),
            "refusals": refusals(),
        }
        dist.barrier()
        results.put((rank, found))
    except Exception as error:
        results.put((rank, repr(error)))
        raise


@pytest.fixture(scope="module")
def found() -> list[Result]:
    """Results of each rank."""
    # DDP imports it, which takes seconds: once here instead of in each forked rank.
    importlib.import_module("torch._dynamo")
    context = multiprocessing.get_context("fork")
    ports, results = context.Queue(), context.Queue()
    ranks = [context.Process(target=run, args=(rank, ports, results)) for rank in range(WORLD)]
    for each in ranks:
        each.start()
    try:
        answers = dict(results.get(timeout=60) for _ in ranks)
    finally:
        for each in ranks:
            each.join(5)
            each.kill()
    assert not [answer for answer in answers.values() if isinstance(answer, str)], answers
    return [answers[rank] for rank in range(WORLD)]


def test_the_ring_does_not_wait_for_a_child(found: list[Result]) -> None:
    # The child has waited for the fifth update of the ring before its first gradient.
    for rank in range(CHILD):
        assert found[rank]["marked"]["ledger"].counts[:ALONE] == [3] * ALONE
        assert found[rank]["marked"]["steps"] == ALONE + TOGETHER


def test_every_gradient_is_applied_once_or_counted_as_stale(found: list[Result]) -> None:
    for case in ("marked", "strict"):
        results = [each[case] for each in found]
        parent, child = results[0]["ledger"], results[CHILD]["ledger"]
        assert child.sent == parent.applied + parent.stale
        values = torch.tensor(results[0]["values"]).view(WORLD, PLACES_OF_RANK)
        seen = (values != 0).sum(dim=1).tolist()
        assert seen == [ALONE + TOGETHER] * 3 + [parent.applied]
        # An update averages: each of its gradients counts 1 / count, and all together 1.
        assert -values.sum().item() == pytest.approx(ALONE + TOGETHER, rel=1e-5)
        third, fourth = (torch.isclose(-values, torch.tensor(1 / n)) for n in (3, 4))
        assert (third | fourth | (values == 0)).all()
        assert sum(parent.counts) == 3 * (ALONE + TOGETHER) + parent.applied


def test_the_child_takes_part(found: list[Result]) -> None:
    parent = found[0]["marked"]["ledger"]
    assert parent.applied >= len(MEETINGS)
    assert parent.staleness[0] >= ALONE
    assert found[CHILD]["marked"]["is over"]


def test_a_gradient_that_is_too_old_is_dropped(found: list[Result]) -> None:
    parent = found[0]["strict"]["ledger"]
    assert parent.stale >= 1
    assert parent.applied >= 2
    assert all(each <= 3 for each in parent.staleness)
    assert found[0]["strict"]["values"][PLACES_OF_RANK * CHILD] == 0


def test_all_ranks_end_with_the_same_parameters(found: list[Result]) -> None:
    for case in ("marked", "strict", "order 1", "order 2", "order 3"):
        assert all(each[case]["values"] == found[0][case]["values"] for each in found), case


def test_without_children_the_hook_averages_like_torch(found: list[Result]) -> None:
    for each in found:
        assert torch.allclose(torch.tensor(each["hook"]), torch.tensor(each["plain"]), rtol=1e-5, atol=1e-5)


def test_the_order_of_all_workers_is_synchronous(found: list[Result]) -> None:
    expected = 0.0
    for _ in range(20):
        expected -= 0.1 * (expected - 2.0)
    assert found[0]["order 3"]["values"] == pytest.approx([expected] * 3, rel=1e-5)
    reports = found[0]["order 3"]["reports"]
    assert all(sorted(update) == [(1, 0), (2, 0), (3, 0)] for update in reports.applied)
    assert (reports.stale, reports.left) == (0, 0)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_server_counts_every_report(found: list[Result], order: int) -> None:
    reports = found[0][f"order {order}"]["reports"]
    assert [len(update) for update in reports.applied] == [order] * 20
    assert reports.n_gradients == sum(each[f"order {order}"]["sent"] for each in found[1:])
    assert reports.left <= WORLD - 1


def test_the_server_drops_stale_reports(found: list[Result]) -> None:
    reports = found[0]["fresh"]["reports"]
    assert all(staleness == 0 for update in reports.applied for _, staleness in update)
    # Each worker begins at update 0, but only one report is the first.
    assert reports.stale + reports.left >= WORLD - 2
    assert reports.n_gradients == sum(each["fresh"]["sent"] for each in found[1:])


def test_the_server_measures_steps_and_its_own_work(found: list[Result]) -> None:
    seen = found[0]["seen"]["seen"]
    assert seen.steps.shape == (WORLD, MAX_STEPS)
    assert np.isnan(seen.steps[0]).all()
    assert np.isfinite(seen.steps[1:]).sum(axis=1).tolist() == [20] * 3
    assert seen.usual[3] >= 0.03
    # A third of the work on an update of three reports, which is 6 ms and the messages.
    assert 0.002 <= seen.report_seconds < 0.02


def test_what_cannot_run_is_refused(found: list[Result]) -> None:
    refused = found[0]["refusals"]
    assert "leave no ring of 4 ranks" in refused["all"]
    assert "leave no ring of 4 ranks" in refused["unknown"]
    assert "bfloat16" in refused["half"]
    assert "3 workers cannot give updates of 4" in refused["order"]
