"""Limits for every test, and small readable windows, built by hand."""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import sys
import time

# Threads of LightGBM and BLAS spin while they wait, at five times the cost on cores that other tests use.
os.environ.setdefault("OMP_THREAD_LIMIT", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

from rca.window import Window
from rca.workers import Workers

if TYPE_CHECKING:
    from starlette.testclient import TestClient

# At Python's own threshold, collections of garbage take 5 to 10 % of the time of imports and tests.
gc.set_threshold(50_000, 20, 100)
# Hypothesis measures wall time, which a busy machine stretches.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

ROOT = Path(__file__).resolve().parents[1]
START = 1_700_000_000.0


#: The longest modules. `test_generalise` uses windows that `test_train` simulates: they must not run at once.
LONGEST = ("test_train.py", "test_survival.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs the long tests as well."""
    parser.addoption("--long", action="store_true", help="also run tests that are marked as long")
    parser.addoption("--screenshots", help="folder for pictures of the page in a browser")
    parser.addini("unit_seconds", "processor time that a test without a mark may take, seconds")


#: Events of the interpreter that only system tests may cause.
_OF_SYSTEM_TESTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.bind", "socket.connect"}
_caused: list[str] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in _OF_SYSTEM_TESTS:
        _caused.append(f"{event} {arguments[1:2] or arguments}")


sys.addaudithook(_note)
_spawn = multiprocessing.util.spawnv_passfds  # type: ignore[attr-defined]


def _noted_spawn(*arguments: Any) -> Any:
    _caused.append("a process of multiprocessing")
    return _spawn(*arguments)


multiprocessing.util.spawnv_passfds = _noted_spawn  # type: ignore[attr-defined]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the simulator once: in a fresh checkout each worker would do it within some test."""
    if getattr(session.config.option, "numprocesses", None) and not hasattr(session.config, "workerinput"):
        from rca.lab.simulation.corpus import simulated_window

        simulated_window(0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Note from here on what a test starts."""
    _caused.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure the processor time of a test, without its fixtures."""
    began = time.process_time()
    try:
        return (yield)
    finally:
        item.user_properties.append(("processor seconds", time.process_time() - began))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a unit test that starts a process, uses a socket, or takes too long."""
    # Fixtures of the whole run may end with this test.
    caused = _caused[:3]
    done = yield
    if not any(item.iter_markers("system")) and not any(item.iter_markers("prose")):
        limit, taken = float(item.config.getini("unit_seconds")), dict(item.user_properties)
        seconds = float(str(taken.get("processor seconds", 0.0)))
        wrong = caused or ([f"{seconds:.1f} s of processor time"] if seconds > limit else [])
        if wrong:
            pytest.fail(f"a unit test may not: {', '.join(wrong)}; mark it as system", pytrace=False)
    return done


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is long unless it is asked for, and run long modules first.

    No worker starts a long module when the others have nothing left.
    """
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="--long runs it"))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name not in LONGEST, item.path not in slow))


def pytest_collection_finish() -> None:
    """Collections of garbage and forked processes spend no time on modules and collected tests."""
    gc.collect()
    gc.freeze()


_MODEL_STORE = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Workers]:
    """Two worker processes, which start with the first task."""
    with Workers(2) as held:
        yield held


@pytest.fixture(scope="session")
def client(_service_settings: None) -> Iterator[TestClient]:
    """The service as an operator gets it: shipped bundle, a database and windows of its own."""
    with served() as held:
        yield held


@pytest.fixture(scope="session")
def small_client(_service_settings: None) -> Iterator[TestClient]:
    """A service with limits small enough to be reached in a test."""
    with served(max_body_bytes=50_000, max_decoded_bytes=80_000) as held:
        yield held


def served(**settings: Any) -> TestClient:
    from starlette.testclient import TestClient

    from rca_api.shell.app import create_app
    from rca_api.shell.settings.settings import Settings

    return TestClient(create_app(Settings(processes=1, **settings)), raise_server_exceptions=False)


@pytest.fixture(scope="session")
def url(_service_settings: None) -> Iterator[str]:
    """Address of a service in a process of its own."""
    from rca_api.shell.demo import running_service

    with running_service(settings={"RCA_PROCESSES": "1"}) as address:
        yield address


@pytest.fixture(scope="session", autouse=True)
def _service_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test touches the data of the user who runs it; those about access switch it on themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RCA_DATA_DIR", str(tmp_path_factory.mktemp("service-data")))
        patch.setenv("RCA_AUTH", "off")
        for name in _MODEL_STORE:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_model_store_is_left() -> Iterator[None]:
    """MLflow leaves the address of its store in the environment, and services of later modules follow it."""
    yield
    for name in _MODEL_STORE:
        os.environ.pop(name, None)


MakeWindow = Callable[..., Window]


def build_window(
    n_ranks: int = 8,
    n_steps: int = 40,
    *,
    late: dict[int, float | np.ndarray] | None = None,
    steps: slice = slice(None),
    phase: str | Mapping[str, float] = "forward_seconds",
    ranks_per_node: int = 2,
    parallelism: dict[str, int] | None = None,
    transfer: float | np.ndarray = 0.04,
    noise: float = 0.0005,
    seed: int = 0,
    metrics: pa.Table | None = None,
    columns: tuple[str, ...] | None = None,
) -> Window:
    """A data-parallel job in which the ranks of `late` spend extra seconds in `phase` during `steps`.

    Seconds may be an array, one value for each of the steps. A mapping of phases to shares spreads the
    seconds over several phases.
    Everybody leaves the all-reduce together, so the others wait exactly as long as the last one is late.
    """
    rng = np.random.default_rng(seed)
    base = {
        "data_loading_seconds": 0.0002,
        "host_to_device_seconds": 0.005,
        "forward_seconds": 0.022,
        "backward_seconds": 0.041,
        "optimizer_seconds": 0.003,
    }
    own = {name: value + np.abs(rng.normal(0, noise, (n_ranks, n_steps))) for name, value in base.items()}
    shares = {phase: 1.0} if isinstance(phase, str) else phase
    for rank, seconds in (late or {}).items():
        for name, share in shares.items():
            own.setdefault(name, np.zeros((n_ranks, n_steps)))[rank, steps] += share * seconds
    total = sum(own.values(), np.zeros((n_ranks, n_steps)))
    wait = total.max(axis=0) - total
    moved = np.broadcast_to(transfer + np.abs(rng.normal(0, noise, n_steps)), total.shape)
    whole = total + wait + moved
    begin = START + 1.0 + np.concatenate([[0.0], np.cumsum(whole[0])[:-1]])
    table = {
        "rank": pa.array(np.repeat(np.arange(n_ranks), n_steps), pa.int32()),
        "step": pa.array(np.tile(np.arange(n_steps), n_ranks), pa.int64()),
        "start_time": pa.array(np.tile(begin, n_ranks)),
        **{name: pa.array(values.ravel()) for name, values in own.items()},
        "communication_wait_seconds": pa.array(wait.ravel()),
        "communication_transfer_seconds": pa.array(moved.ravel()),
        "step_seconds": pa.array(whole.ravel()),
    }
    if columns is not None:
        table = {name: values for name, values in table.items() if name in columns}
    job = {
        "format": 1,
        "job_id": "test",
        "world_size": n_ranks,
        "parallelism": parallelism or {"data": n_ranks},
        "ranks": [
            {"rank": rank, "node": f"node-{rank // ranks_per_node}", "gpu": rank % ranks_per_node}
            for rank in range(n_ranks)
        ],
        "start": START,
        "end": float(begin[-1] + whole[0, -1] + 0.1),
    }
    return Window.from_tables(job, pa.table(table), metrics)


@pytest.fixture(scope="session")
def make_window() -> MakeWindow:
    return build_window


@pytest.fixture(scope="session")
def real_windows() -> Path:
    return ROOT / "data" / "windows"
