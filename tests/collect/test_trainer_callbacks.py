"""Callbacks for trainers: their events become steps and phases; no error reaches the trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from collector_clock import Clock, rows, timer_with_clock

from rca import collect
from rca.collect import callbacks
from rca.collect.callbacks import Session
from rca.collect.recorder import Faults
from rca.collect.segments import read_segment
from rca.collect.timers import StepTimer


@pytest.fixture
def parts() -> tuple[StepTimer, Clock, Session, list[Any]]:
    timer, clock = timer_with_clock()
    calls: list[Any] = []
    faults = Faults()
    session = Session(
        start=lambda: calls.append("start") is None,
        stop=lambda *error: calls.append(("stop", *error) if error else "stop"),
        watch=lambda model: calls.append(model),
        expect_backward=lambda loss: calls.append(loss),
        timer=lambda: timer,
        faults=lambda: faults,
    )
    return timer, clock, session, calls


@pytest.fixture(autouse=True)
def _no_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(callbacks, "import_module", missing)


def lightning_batch(callback: Any, clock: Clock, trainer: Any, number: int) -> None:
    clock.now += 0.25  # fetching
    callback.on_train_batch_start(trainer, None, "batch", number)
    clock.now += 1.0
    callback.on_before_backward(trainer, None, "loss")
    clock.now += 2.0
    callback.on_train_batch_end(trainer, None, None, "batch", number)


def test_lightning_steps_have_loading_and_forward(parts: tuple[StepTimer, Clock, Session, list[Any]]) -> None:
    timer, clock, session, calls = parts
    callback = callbacks.lightning(session)
    trainer = SimpleNamespace(model="wrapped", accumulate_grad_batches=1, is_last_batch=False)
    callback.on_train_start(trainer, "module")
    lightning_batch(callback, clock, trainer, 0)
    lightning_batch(callback, clock, trainer, 1)
    callback.on_train_end(trainer, "module")
    assert calls == ["start", "wrapped", "loss", "loss", "stop"]
    found = [
        (row["step"], row["data_loading_seconds"], row["forward_seconds"], row["step_seconds"])
        for row in rows(timer)
    ]
    assert found == [(0, 0.25, 1.0, 3.25), (1, 0.25, 1.0, 3.25)]


def test_lightning_batches_of_one_optimizer_step_are_one_step(
    parts: tuple[StepTimer, Clock, Session, list[Any]],
) -> None:
    timer, clock, session, _ = parts
    callback = callbacks.lightning(session)
    trainer = SimpleNamespace(model=None, accumulate_grad_batches=2, is_last_batch=False)
    callback.on_train_start(trainer, "module")
    for number in range(3):
        trainer.is_last_batch = number == 2
        lightning_batch(callback, clock, trainer, number)
    assert [(row["data_loading_seconds"], row["step_seconds"]) for row in rows(timer)] == [
        (0.5, 6.5),
        (0.25, 3.25),
    ]


def test_lightning_validation_is_no_data_loading_and_checkpoints_are_apart(
    parts: tuple[StepTimer, Clock, Session, list[Any]],
) -> None:
    timer, clock, session, _ = parts
    callback = callbacks.lightning(session)
    trainer = SimpleNamespace(model=None, accumulate_grad_batches=1, is_last_batch=False)
    callback.on_train_start(trainer, "module")
    lightning_batch(callback, clock, trainer, 0)
    callback.on_validation_start(trainer, "module")
    clock.now += 60.0
    callback.on_validation_end(trainer, "module")
    callback.on_save_checkpoint(trainer, "module", {})
    clock.now += 5.0
    lightning_batch(callback, clock, trainer, 1)
    first, second = rows(timer)
    assert (first["data_loading_seconds"], second["data_loading_seconds"]) == (0.25, 0.0)
    assert (second["checkpoint_seconds"], second["step_seconds"]) == (5.25, 8.25)


def test_transformers_steps_have_loading_and_checkpoints(
    parts: tuple[StepTimer, Clock, Session, list[Any]],
) -> None:
    timer, clock, session, calls = parts
    callback = callbacks.transformers(session)
    state = SimpleNamespace(global_step=100)
    callback.on_train_begin(None, state, None, model="model")
    callback.on_epoch_begin(None, state, None)
    for step in (100, 101, 102):
        state.global_step = step
        clock.now += 0.5
        callback.on_step_begin(None, state, None)
        clock.now += 2.0
        callback.on_step_end(None, state, None)
        if step == 100:
            clock.now += 7.0
            callback.on_save(None, state, None)
        if step == 101:
            clock.now += 60.0
            callback.on_evaluate(None, state, None, metrics={})
    callback.on_train_end(None, state, None)
    assert calls == ["start", "model", "stop"]
    found = rows(timer)
    assert [row["step"] for row in found] == [100, 101, 102]
    assert [row["data_loading_seconds"] for row in found] == [0.5, 0.5, 0.5]
    assert [row["step_seconds"] for row in found] == [2.5, 9.5, 2.5]
    assert found[1]["checkpoint_seconds"] == 7.0


def test_lightning_ends_the_collection_with_the_error_of_the_training(
    parts: tuple[StepTimer, Clock, Session, list[Any]],
) -> None:
    _, clock, session, calls = parts
    callback = callbacks.lightning(session)
    trainer = SimpleNamespace(model="wrapped", accumulate_grad_batches=1, is_last_batch=False)
    callback.on_train_start(trainer, "module")
    lightning_batch(callback, clock, trainer, 0)
    error = RuntimeError("Connection reset by peer")
    callback.on_exception(trainer, "module", error)
    assert calls[-1] == ("stop", error)


@pytest.mark.parametrize("make", [collect.lightning_callback, collect.transformers_callback])
def test_a_trainer_that_ends_while_an_error_passes_did_not_end_normally(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    collect.start(tmp_path, rank=0, world_size=1)
    try:
        raise RuntimeError("Connection reset by peer")
    except RuntimeError:
        make().on_train_end(None, None)
    (path,) = tmp_path.iterdir()
    ended = read_segment(path.read_bytes()).events[0]
    assert (ended["code"], ended["message"]) == ("1", "RuntimeError: Connection reset by peer")


def test_an_error_in_a_callback_stays_there(parts: tuple[StepTimer, Clock, Session, list[Any]]) -> None:
    timer, _, session, _ = parts
    callback = callbacks.transformers(session)
    callback.on_step_begin(None, SimpleNamespace(global_step="many"), None)
    assert session.faults().count == 1
    assert not timer.in_step


def test_the_framework_gives_the_base_class(
    parts: tuple[StepTimer, Clock, Session, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Callback:
        def on_fit_start(self) -> str:
            return "base"

    monkeypatch.setattr(callbacks, "import_module", lambda name: SimpleNamespace(Callback=Callback))
    callback = callbacks.lightning(parts[2])
    assert isinstance(callback, Callback)
    assert callback.on_fit_start() == "base"
