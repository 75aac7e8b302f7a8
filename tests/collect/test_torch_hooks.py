"""Hooks on PyTorch: all phases without a line each, and the same numbers as without hooks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rca
from rca import collect
from rca.collect.segments import read_segment

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("default")

PHASES = ("data_loading", "forward", "backward", "communication", "optimizer")


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    collect.stop()


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def train(net: Any, steps: int = 3) -> list[float]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for batch in collect.steps(torch.randn(4, 8, generator=generator) for _ in range(steps)):
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def columns(folder: Path) -> dict[str, list[float]]:
    (path,) = folder.iterdir()
    segment = read_segment(path.read_bytes())
    return {name: segment.steps[:, number].tolist() for number, name in enumerate(segment.header["steps"])}


@pytest.mark.system
def test_watching_times_the_phases_and_changes_no_number(tmp_path: Path) -> None:
    expected = train(model())
    collect.start(tmp_path, rank=0, world_size=1)
    assert train(collect.watch(model())) == expected
    collect.stop()
    found = columns(tmp_path)
    for name in PHASES:
        assert np.all(np.array(found[f"{name}_seconds"]) > 0) or name == "communication"
    spent = sum(np.array(found[f"{name}_seconds"]) for name in PHASES)
    assert np.all(spent <= np.array(found["step_seconds"]) + 1e-9)


def test_evaluation_between_steps_is_not_timed(tmp_path: Path) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    net = collect.watch(model())
    net(torch.ones(1, 8))
    with collect.step():
        pass
    net(torch.ones(1, 8)).sum().backward()
    collect.stop()
    found = columns(tmp_path)
    assert np.isnan(found["forward_seconds"] + found["backward_seconds"]).all()


def test_everything_is_taken_back_at_the_end(tmp_path: Path) -> None:
    distributed = torch.distributed
    before = [getattr(distributed, "all_reduce", None), getattr(distributed, "barrier", None)]
    collect.start(tmp_path, rank=0, world_size=1)
    net = collect.watch(model())
    assert not before[0] or distributed.all_reduce is not before[0]
    collect.stop()
    assert [getattr(distributed, "all_reduce", None), getattr(distributed, "barrier", None)] == before
    assert not net._forward_hooks
    assert not net._forward_pre_hooks


@pytest.mark.parametrize(
    "wrap",
    [lambda out: out, lambda out: {"a": 1, "loss": out}, lambda out: (None, [out])],
    ids=["tensor", "mapping", "sequence"],
)
def test_outputs_of_any_form_begin_the_backward_pass(tmp_path: Path, wrap: Any) -> None:
    class Wrapped(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = model()
            self.out: Any = None

        def forward(self, batch: Any) -> Any:
            self.out = self.net(batch)
            return wrap(self.out)

    collect.start(tmp_path, rank=0, world_size=1)
    net = collect.watch(Wrapped())
    with collect.step():
        net(torch.ones(1, 8))
        net.out.sum().backward()
    collect.stop()
    assert columns(tmp_path)["backward_seconds"][0] > 0


def _rank(rank: int, folder: Path) -> None:
    """Train without hooks, then with them; a file of the rank has the losses of both."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    # A port that is free now may be taken before the ranks meet.
    torch.distributed.init_process_group("gloo", f"file://{folder / 'ranks'}", rank=rank, world_size=2)
    losses = []
    for hooks in (False, True):
        if hooks:
            collect.start(folder / "collected", node="n")
        net = torch.nn.parallel.DistributedDataParallel(model())
        losses.append(train(collect.watch(net), steps=8))
        for _ in range(2):
            with collect.step():
                torch.distributed.all_reduce(torch.ones(4))
    collect.stop()
    (folder / f"losses-{rank}.json").write_text(json.dumps(losses))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.system
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_data_parallel_ranks_have_communication_and_the_same_losses(tmp_path: Path) -> None:
    # A forked child of a process with threads may hang.
    torch.multiprocessing.start_processes(_rank, (tmp_path,), 2, start_method="spawn")
    for rank in range(2):
        without, with_hooks = json.loads((tmp_path / f"losses-{rank}.json").read_text())
        assert without == with_hooks
    steps = rca.read_window(tmp_path / "collected").steps.to_pandas()
    assert len(steps) == 2 * 10
    waited = steps.groupby("step").communication_seconds.max()
    assert (waited > 0).all()
    trained = steps[steps.step < 8]
    assert (trained[[f"{name}_seconds" for name in PHASES]].sum(axis=1) <= trained.step_seconds + 1e-9).all()


@pytest.mark.parametrize("place", ["backward", "collective"])
def test_a_lost_peer_is_seen_without_a_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    lost = RuntimeError("Connection reset by peer")

    def reset(*_: Any, **__: Any) -> None:
        raise lost

    monkeypatch.setattr(torch.distributed, "all_reduce", reset)
    collect.start(tmp_path, rank=0, world_size=1)
    net = collect.watch(model())
    steps = collect.steps([1])
    next(steps)
    loss = net(torch.ones(1, 8)).sum()
    loss.register_hook(reset)
    lose = loss.backward if place == "backward" else lambda: torch.distributed.all_reduce(loss)
    with pytest.raises(RuntimeError, match="reset by peer"):
        lose()
    collect.stop()
    (path,) = tmp_path.iterdir()
    found = read_segment(path.read_bytes())
    assert [each["kind"] for each in found.events] == ["log", "process_exit", "collector_end"]
    assert found.open_step is not None
