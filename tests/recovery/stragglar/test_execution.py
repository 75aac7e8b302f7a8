"""StragglAR on real gloo processes: nine of them run all cases once, and every test reads the results."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.for_each import for_each

torch = pytest.importorskip("torch", reason="StragglAR runs on torch.distributed; PyTorch is not installed")

pytestmark = pytest.mark.system
dist = torch.distributed

from rca.errors import InvalidInput  # noqa: E402
from rca.runtime.stragglar import execution  # noqa: E402
from rca.runtime.stragglar.arrivals import Arrivals  # noqa: E402
from rca.runtime.stragglar.cost import GroupCosts, Link  # noqa: E402
from rca.runtime.stragglar.ddp_hook import StragglarState, ddp_hook  # noqa: E402
from rca.runtime.stragglar.execution import all_reduce  # noqa: E402

WORLD = 9
TIMEOUT = timedelta(seconds=60)
DTYPES = ("float64", "bfloat16", "int64", "float16")
TOLERANCES = {"float32": 1e-5, "float64": 1e-13, "bfloat16": 0.06, "float16": 0.01, "int64": 0.0}
DDP_RANKS = 4
#: StragglAR is faster for each bucket, or for those above 2 kB.
FOR_ALL = GroupCosts(Link(0.0, 0.0), Link(1.0, 0.0))
FOR_LARGE = GroupCosts(Link(2.0, 0.0), Link(0.0, 1e-3))

Result = dict[str, Any]


def values_of(rank: int, size: int, dtype: str) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * rank + size)
    if dtype == "int64":
        return torch.randint(-1000, 1000, (size,), generator=draw)
    return torch.randn(size, generator=draw, dtype=torch.float64).to(getattr(torch, dtype))


def check_sum(group: dist.ProcessGroup, straggler: int, size: int, dtype: str) -> tuple[float, bytes]:
    """Error of the sum relative to float64, and the bytes of the result."""
    ranks = range(group.size())
    tensor = values_of(group.rank(), size, dtype)
    expected = sum(values_of(rank, size, dtype).double() for rank in ranks)
    all_reduce(tensor, straggler, group)
    error = float((tensor.double() - expected).abs().max() / expected.abs().max().clamp(min=1))
    return error, tensor.view(torch.uint8).numpy().tobytes()


def sums(group: dist.ProcessGroup) -> Result:
    n = group.size()
    found: Result = {}
    cases = [(straggler, 1003, "float32") for straggler in (0, n // 2, n - 1)]
    cases += [(0, size, "float32") for size in (1, 7)] + [(n - 1, 61, dtype) for dtype in DTYPES]
    for straggler, size, dtype in cases:
        name = f"{n} ranks, straggler {straggler}, {size} {dtype}"
        found[name] = check_sum(group, straggler, size, dtype)
    return found


def layouts(group: dist.ProcessGroup) -> Result:
    """A transposed parameter, beside the all-reduce of torch."""
    square = values_of(group.rank(), 36, "float32").view(6, 6)
    theirs = square.clone()
    dist.all_reduce(theirs, group=group)
    ours = torch.nn.Parameter(square.clone().t())
    all_reduce(ours, 1, group)
    return {"transposed": bool(torch.allclose(ours.detach().t(), theirs, atol=1e-5))}


def overlap(group: dist.ProcessGroup) -> Result:
    """The straggler comes only after the others have reduce-scattered."""
    store = dist.PrefixStore("overlap", group.get_group_store())
    whole = execution.ring_reduce_scatter

    def and_tell(*arguments: Any) -> None:
        whole(*arguments)
        store.set(str(group.rank()), "done")

    execution.ring_reduce_scatter = and_tell
    straggler = 2
    if group.rank() == straggler:
        store.wait([str(rank) for rank in range(group.size()) if rank != straggler], TIMEOUT)
    tensor = torch.ones(100)
    all_reduce(tensor, straggler, group)
    execution.ring_reduce_scatter = whole
    return {"overlap": bool((tensor == group.size()).all())}


def agreement(group: dist.ProcessGroup) -> Result:
    """One rank at a time is made the last one; then nothing orders the arrivals."""
    arrivals = Arrivals(group)
    n, found, keys = group.size(), [], set()
    for late in (0, n - 1, 1, None):
        if group.rank() == late:
            while arrivals.store.add(f"{arrivals.passed + 1}/count", 0) < n - 1:
                pass
        found.append((late, arrivals.last()))
        all_reduce(torch.ones(3), found[-1][1], group)
        dist.barrier(group)
        keys.add(arrivals.store.num_keys())
        dist.barrier(group)
    return {"agreement": found, "key counts": keys}


def gradients(group: dist.ProcessGroup, state: StragglarState | None) -> list[list[float]]:
    """Gradients of two steps of a small model, by torch's all-reduce or by the hook."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(24, 24) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=0.003
    )
    if state is not None:
        model.register_comm_hook(state, ddp_hook)
    found = []
    for step in range(2):
        inputs = values_of(group.rank(), 24 * (step + 1), "float32").view(-1, 24)
        model.zero_grad()
        model(inputs).square().sum().backward()
        found.append(torch.cat([each.grad.flatten() for each in model.parameters()]).tolist())
    return found


def training(group: dist.ProcessGroup) -> Result:
    static, eager = StragglarState(2, group, costs=FOR_ALL), StragglarState(None, group, costs=FOR_ALL)
    by_size, measured = StragglarState(2, group, costs=FOR_LARGE), StragglarState(2, group)
    buckets = [torch.full((size,), float(group.rank())) for size in (100, 1000)]
    for each in buckets:
        by_size.average(each)
    return {
        "by size": [set(each.tolist()) for each in buckets],
        "by size, choices": (by_size.n_ordinary, dict(by_size.stragglers)),
        "measured": gradients(group, measured),
        "costs": repr(measured.costs),
        "choices": (measured.n_ordinary, dict(measured.stragglers)),
        "plain": gradients(group, None),
        "static": gradients(group, static),
        "eager": gradients(group, eager),
        "static stragglers": dict(static.stragglers),
        "eager stragglers": dict(eager.stragglers),
    }


class Failing(StragglarState):
    def average(self, gradients: torch.Tensor) -> None:
        raise ValueError("no link")


def failure(group: dist.ProcessGroup) -> Result:
    """What backward raises if the all-reduce fails."""
    try:
        gradients(group, Failing(0, group, costs=FOR_ALL))
    except Exception as error:
        return {"failure": str(error)}
    return {"failure": ""}


def refusals(group: dist.ProcessGroup) -> Result:
    def refused(call: Callable[[], None]) -> str:
        try:
            call()
        except InvalidInput as error:
            return error.message
        return ""

    return {
        "straggler": refused(lambda: all_reduce(torch.ones(3), group.size(), group)),
        "state": refused(lambda: StragglarState(-1, group)),
        "bool": refused(lambda: all_reduce(torch.ones(3, dtype=torch.bool), 0, group)),
    }


def serve(rank: int, ports: Any, results: Any) -> None:
    torch.set_num_threads(1)
    try:
        # The first rank holds the store: no process is forked while the store's thread runs.
        port = 0 if rank == 0 else ports.get(timeout=TIMEOUT.seconds)
        store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=TIMEOUT, wait_for_workers=False)
        for _ in range(WORLD - 1 if rank == 0 else 0):
            ports.put(store.port)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=TIMEOUT)
        found: Result = {}
        for n in range(WORLD, 1, -1):
            group = dist.new_group(list(range(n)))
            if rank >= n:
                continue
            found |= sums(group)
            if n == DDP_RANKS:
                for part in (layouts, overlap, agreement, training, refusals, failure):
                    found |= part(group)
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
    ranks = [context.Process(target=serve, args=(rank, ports, results)) for rank in range(WORLD)]
    for each in ranks:
        each.start()
    try:
        answers = dict(results.get(timeout=120) for _ in ranks)
    finally:
        for each in ranks:
            each.join(5)
            each.kill()
    assert not [answer for answer in answers.values() if isinstance(answer, str)]
    return [answers[rank] for rank in range(WORLD)]


@for_each("n", range(2, WORLD + 1))
def test_the_sum_is_right_and_the_same_on_all_ranks(found: list[Result], n: int) -> None:
    cases = [name for name in found[0] if name.startswith(f"{n} ranks")]
    assert len(cases) >= 4 + len(DTYPES)
    for name in cases:
        errors, results = zip(*(found[rank][name] for rank in range(n)), strict=True)
        assert max(errors) <= TOLERANCES[name.split()[-1]], name
        assert len(set(results)) == 1, name


def test_a_transposed_parameter_is_reduced_like_by_torch(found: list[Result]) -> None:
    assert all(found[rank]["transposed"] for rank in range(DDP_RANKS))


def test_the_others_reduce_scatter_before_the_straggler_comes(found: list[Result]) -> None:
    assert all(found[rank]["overlap"] for rank in range(DDP_RANKS))


def test_all_ranks_agree_on_who_is_last(found: list[Result]) -> None:
    agreed = found[0]["agreement"]
    assert all(found[rank]["agreement"] == agreed for rank in range(DDP_RANKS))
    assert [last for late, last in agreed if late is not None] == [0, DDP_RANKS - 1, 1]


def test_agreements_leave_no_keys_behind(found: list[Result]) -> None:
    assert len(found[0]["key counts"]) == 1


def test_the_hook_averages_gradients_like_torch(found: list[Result]) -> None:
    for mode in ("static", "eager", "measured"):
        for rank in range(DDP_RANKS):
            ours, theirs = torch.tensor(found[rank][mode]), torch.tensor(found[0]["plain"])
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_state_counts_the_stragglers(found: list[Result]) -> None:
    assert list(found[0]["static stragglers"]) == [2]
    eager = [found[rank]["eager stragglers"] for rank in range(DDP_RANKS)]
    assert all(each == eager[0] for each in eager)
    assert sum(eager[0].values()) == sum(found[0]["static stragglers"].values()) > 2


def test_small_buckets_take_the_ordinary_all_reduce(found: list[Result]) -> None:
    for rank in range(DDP_RANKS):
        assert found[rank]["by size"] == [{1.5}, {1.5}]
        assert found[rank]["by size, choices"] == (1, {2: 1})


def test_all_ranks_measure_the_same_costs_and_choose_alike(found: list[Result]) -> None:
    for name in ("costs", "choices"):
        assert len({repr(found[rank][name]) for rank in range(DDP_RANKS)}) == 1


def test_an_all_reduce_that_fails_ends_the_backward_pass(found: list[Result]) -> None:
    assert all("no link" in found[rank]["failure"] for rank in range(DDP_RANKS))


def test_what_cannot_be_reduced_is_refused(found: list[Result]) -> None:
    assert "not one of 4 ranks" in found[0]["straggler"]
    assert "not one of 4 ranks" in found[0]["state"]
    assert "torch.bool" in found[0]["bool"]


def test_a_process_without_a_group_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not a rank"):
        all_reduce(torch.ones(3), 0)
