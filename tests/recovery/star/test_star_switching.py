"""Modes that change while a job runs, on real gloo processes: four of them run all cases once."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import runpy
import socket
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="STAR runs on torch.distributed; PyTorch is not installed")

pytestmark = pytest.mark.system
dist = torch.distributed

from rca.errors import InvalidInput  # noqa: E402
from rca.runtime.star.grouping import DynamicGroups, Groups, SeenTimes, XOrder  # noqa: E402
from rca.runtime.star.parameter_server import serve, work  # noqa: E402
from rca.runtime.star.ring_with_children import ddp_hook  # noqa: E402
from rca.runtime.star.switching_ring import SwitchingRing  # noqa: E402

WORLD, CHILD = 4, 3
TIMEOUT = timedelta(seconds=60)
UPDATES = 20
#: The rule of the case in which ranks end.
MORTAL: dict[int, tuple[int, ...]] = {4: (CHILD,), 8: ()}
EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples" / "star"

Result = dict[str, Any]


class Scripted:
    """A rule that names the children by the number of updates."""

    def __init__(self, script: dict[int, tuple[int, ...]]) -> None:
        self.script = script

    def __call__(self, n_updates: int, usual: object, children: Collection[int]) -> Collection[int]:
        assert isinstance(usual, np.ndarray)
        return self.script.get(n_updates, tuple(children))


class Counting(torch.nn.Module):
    """A linear model with a buffer that counts the steps of a rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.layers(x).square().mean()


def switched(
    rank: int,
    script: dict[int, tuple[int, ...]],
    *,
    dies_after: int | None = None,
    dies_at: int | None = None,
) -> Result:
    """Train with a scripted rule; a parent waits for each gradient, so that the speed of no rank matters."""
    model, sent = Counting(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    state = SwitchingRing(model, optimizer, Scripted(script), timeout=TIMEOUT)
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=state.group, bucket_cap_mb=1e-4)
    ddp.register_comm_hook(state, ddp_hook)
    draw = torch.Generator().manual_seed(rank)
    store = dist.PrefixStore("meet", dist.group.WORLD.get_group_store())

    def step() -> None:
        optimizer.zero_grad()
        loss = ddp(torch.randn(4, 8, generator=draw))
        # The end of a child arrives, too.
        for _ in range(100_000 if state.mine else 0):
            if state.arrived == len(state.mine):
                break
            store.add("polls", 1)
        loss.backward()
        optimizer.step()
        state.after_step()

    error = ""
    while state.goes_on(UPDATES) and not error:
        try:
            step()
        except RuntimeError as found:
            error = str(found)
        sent += state.is_child
        if (dies_after is not None and sent > dies_after) or state.ledger.updates == dies_at:
            os._exit(0)
    if not error:
        state.close()
    momentum = [optimizer.state[each]["momentum_buffer"] for each in model.parameters()]
    return {
        "values": torch.cat([each.detach().flatten() for each in model.parameters()]).tolist(),
        "momentum": torch.cat([each.flatten() for each in momentum]).tolist(),
        "steps": model.steps.item(),
        "changes": state.changes,
        "ledger": state.ledger,
        "ring": state.ring,
        "usual": state.usual(),
        "refused": refused(state),
        "error": error,
    }


def grouped(rank: int, n_updates: int, choose: Any = None, dies_after: int | None = None) -> Result:
    """Workers 1 and 2 in a group, worker 3 alone; the gradient of worker w is ``parameters - w``."""
    parameters = torch.zeros(3)
    if rank:
        sent = 0

        def gradient() -> torch.Tensor:
            nonlocal sent
            sent += 1
            if dies_after is not None and sent > dies_after:
                os._exit(0)
            return parameters - rank

        return {"sent": work(parameters, gradient), "values": parameters.tolist()}
    sizes = []

    def update(gradient: torch.Tensor, n_reports: int) -> None:
        sizes.append(n_reports)
        parameters.sub_(0.1 * gradient)

    reports = serve(
        parameters, WORLD - 1, Groups(((1, 2), (3,))), update, lambda done: done >= n_updates, choose=choose
    )
    return {"reports": reports, "values": parameters.tolist(), "sizes": sizes}


def without_workers(rank: int) -> Result:
    """Workers 2 and 3 have ended; worker 1 ends after five gradients."""
    try:
        return grouped(rank, 30, None, dies_after=5 if rank == 1 else None)
    except ConnectionError as error:
        return {"error": str(error)}


def by_number(n_updates: int, n_reports: int, seen: SeenTimes) -> XOrder | None:
    assert seen.usual.shape == (WORLD,)
    assert np.isnan(seen.usual[0])
    return XOrder(3) if n_updates == 10 else None


def refused(state: SwitchingRing) -> str:
    state._rule = lambda *_: range(WORLD)
    try:
        state._change()
    except InvalidInput as error:
        return error.message
    return ""


def example(rank: int, port: int, name: str) -> dict[str, Any]:
    """Run an example of the documentation as a rank of its own job."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return runpy.run_path(str(EXAMPLES / name))


def examples(rank: int, ports: list[int]) -> Result:
    ring = example(rank, ports[0], "ring.py")
    server = example(rank, ports[1], "parameter_server.py")
    return {
        "updates": ring["state"].ledger.updates,
        "loss": float((ring["model"].weight.detach() - 1).square().mean()),
        "parameters": server["parameters"].tolist(),
        "applied": len(server["reports"].applied) if rank == 0 else None,
    }


def run(rank: int, ports: Any, results: Any, of_examples: list[int]) -> None:
    torch.set_num_threads(1)
    try:
        results.put((rank, "examples", examples(rank, of_examples)))
        # The first rank holds the store: no process is forked while the store's thread runs.
        port = 0 if rank == 0 else ports.get(timeout=TIMEOUT.seconds)
        store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=TIMEOUT, wait_for_workers=False)
        for _ in range(WORLD - 1 if rank == 0 else 0):
            ports.put(store.port)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=TIMEOUT)
        results.put((rank, "back", switched(rank, {4: (CHILD,), 10: ()})))
        results.put((rank, "handed over", switched(rank, {4: (1, 2, 3), 8: (0, 3), 14: (3,)})))
        results.put((rank, "grouped", grouped(rank, 30)))
        results.put((rank, "changed", grouped(rank, 30, by_number)))
        results.put((rank, "dynamic", grouped(rank, 30, DynamicGroups(1e-9, every=4))))
        dist.barrier()
        found = switched(
            rank, MORTAL, dies_after=0 if rank == CHILD else None, dies_at=14 if rank == 2 else None
        )
        results.put((rank, "dead ranks", found))
        results.put((rank, "dead workers", without_workers(rank)))
        results.put((rank, "end", {}))
    except Exception as error:
        results.put((rank, "end", {"failed": repr(error)}))
        raise


@pytest.fixture(scope="module")
def found() -> dict[str, list[Result]]:
    """Results of each rank by case; only rank 0 reaches the end."""
    # DDP imports it, which takes seconds: once here instead of in each forked rank.
    importlib.import_module("torch._dynamo")
    context = multiprocessing.get_context("fork")
    ports, results = context.Queue(), context.SimpleQueue()
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    of_examples = [each.getsockname()[1] for each in free]
    for each in free:
        each.close()
    ranks = [context.Process(target=run, args=(rank, ports, results, of_examples)) for rank in range(WORLD)]
    for each in ranks:
        each.start()
    cases: dict[str, dict[int, Result]] = {}
    try:
        while "end" not in cases:
            rank, case, result = results.get()
            cases.setdefault(case, {})[rank] = result
            assert "failed" not in result, (rank, result)
    finally:
        for each in ranks:
            each.join(5)
            each.kill()
    return {case: [of_rank[rank] for rank in sorted(of_rank)] for case, of_rank in cases.items()}


def test_the_examples_train(found: dict[str, list[Result]]) -> None:
    results = found["examples"]
    assert max(each["updates"] for each in results) == 100
    assert all(each["loss"] < 0.5 for each in results)
    assert results[0]["applied"] == 100
    assert all(each["parameters"] == results[0]["parameters"] for each in results)
    assert all(abs(each - 1) < 0.5 for each in results[0]["parameters"])


def test_a_rank_leaves_and_comes_back_with_the_state_of_the_ring(found: dict[str, list[Result]]) -> None:
    results = found["back"]
    ring, child = results[:CHILD], results[CHILD]
    assert [(each.ring, each.children) for each in ring[0]["changes"]] == [
        ((0, 1, 2), (CHILD,)),
        ((0, 1, 2, CHILD), ()),
    ]
    assert ring[0]["changes"][0].update == 4
    assert ring[0]["changes"][1].update >= 10
    assert all(each["changes"] == ring[0]["changes"] for each in ring)
    assert all(each["ring"] == [0, 1, 2, CHILD] for each in results)
    # Parameters, momentum and buffers are those of the ring, bit for bit.
    for name in ("values", "momentum"):
        assert all(each[name] == results[0][name] for each in results), name
    assert child["steps"] == results[0]["steps"]
    # The child has trained on its own in between, and each of its gradients is in one update.
    assert child["ledger"].sent > 0
    assert child["ledger"].sent == results[0]["ledger"].applied
    assert results[0]["ledger"].counts[:4] == [WORLD] * 4
    assert results[0]["ledger"].counts[-1] == WORLD
    # All have the same times, and so the same rule gives them the same ring.
    assert all(np.array_equal(each["usual"], results[0]["usual"]) for each in results)
    assert (results[0]["usual"] > 0).all()


def test_a_parent_leaves_when_others_have_its_children(found: dict[str, list[Result]]) -> None:
    results = found["handed over"]
    rings = [each.ring for each in results[0]["changes"]]
    assert rings[0] == (0,)
    assert (1, 2) in [each.ring for each in results[1]["changes"]]
    assert results[0]["ring"] == results[1]["ring"] == results[2]["ring"] == [0, 1, 2]
    for name in ("values", "momentum"):
        assert all(each[name] == results[0][name] for each in results[:CHILD]), name
    sent = sum(each["ledger"].sent for each in results)
    assert sent == sum(each["ledger"].applied + each["ledger"].stale for each in results)
    assert results[CHILD]["values"] == results[0]["values"]


def test_the_ring_goes_on_without_a_child_that_has_ended(found: dict[str, list[Result]]) -> None:
    """The child ends after update 4, and rank 2 of the ring after update 14: then the others get an error."""
    for each in found["dead ranks"]:
        assert each["ledger"].updates == 14
        assert each["ring"] == [0, 1, 2]
        assert each["error"]
    assert not any(each["error"] for each in found["back"])


def test_a_server_updates_by_groups(found: dict[str, list[Result]]) -> None:
    reports = found["grouped"][0]["reports"]
    kinds = [sorted(worker for worker, _ in update) for update in reports.applied]
    assert len(kinds) == 30
    assert {tuple(each) for each in kinds} == {(1, 2), (3,)}
    assert found["grouped"][0]["sizes"] == [len(each) for each in kinds]
    assert reports.n_gradients == sum(each["sent"] for each in found["grouped"][1:])
    assert all(each["values"] == found["grouped"][0]["values"] for each in found["grouped"])


def test_a_server_changes_its_rule_between_updates(found: dict[str, list[Result]]) -> None:
    reports = found["changed"][0]["reports"]
    assert reports.groupings == [(0, Groups(((1, 2), (3,)))), (10, XOrder(3))]
    assert all(len(update) < 3 for update in reports.applied[:10])
    assert all(len(update) == 3 for update in reports.applied[10:])
    assert reports.n_gradients == sum(each["sent"] for each in found["changed"][1:])


def test_dynamic_groups_are_formed_from_measured_times(found: dict[str, list[Result]]) -> None:
    formed = found["dynamic"][0]["reports"].groupings[1:]
    assert formed[0][0] == 4
    # No two times are equal, so each worker is alone. A worker without a time is in no group yet.
    sizes = {len(group) for _, grouping in formed for group in grouping.groups}
    assert sizes == {1}


def test_a_server_without_workers_ends_with_an_error(found: dict[str, list[Result]]) -> None:
    """Worker 2 of the group has ended, so worker 1 updates alone; then it ends, too."""
    assert found["dead workers"][0]["error"] == "all workers have ended before the training was over"


def test_a_rule_that_empties_the_ring_is_refused(found: dict[str, list[Result]]) -> None:
    assert "leave no other rank" in found["back"][0]["refused"]
