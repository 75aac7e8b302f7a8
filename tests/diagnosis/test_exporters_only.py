"""Without steps the machines are compared: the one that stands out is suspected, since its onset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import rca
from rca.cli import app
from rca.diagnosis.exporters_only import RIGHT, cause_of_resource
from rca.features.machine_outliers import UNSPECIFIC
from rca.features.resource_evidence import resource_names
from rca.runbook.headline import headline
from rca.runbook.phrases import plain
from tests.for_each import for_each

START, SECONDS, INTERVAL = 1_760_000_000.0, 1800.0, 15.0
TIMES = np.arange(START, START + SECONDS, INTERVAL)
GPUS = 8
Change = Callable[[str, int, np.ndarray], np.ndarray | None]
Samples = Callable[[int], np.ndarray]


def fleet(
    change: Change | None = None, n_nodes: int = 8, seed: int = 3, more: Mapping[str, Samples] | None = None
) -> rca.Window:
    """A job of 8 GPUs a node with a DCGM exporter and InfiniBand counters, sampled every 15 s.

    `change` gets the name of a metric, the rank (of a node: its first rank) and the usual values, and returns
    other values: a shorter array ends early, None leaves the series out. `more` gives further metrics of the
    ranks of the first node.
    """
    random = np.random.default_rng(seed)
    usual: dict[str, Callable[[], np.ndarray]] = {
        "DCGM_FI_DEV_SM_CLOCK": lambda: random.normal(1960, 12, TIMES.size),
        "DCGM_FI_DEV_GPU_UTIL": lambda: random.normal(97, 1.5, TIMES.size),
        "DCGM_FI_DEV_GPU_TEMP": lambda: random.normal(62, 2, TIMES.size),
        "DCGM_FI_DEV_FB_USED": lambda: np.full(TIMES.size, 70_000.0),
        "DCGM_FI_DEV_PCIE_LINK_GEN": lambda: np.full(TIMES.size, 5.0),
        "node_infiniband_port_errors_received_total": lambda: (
            np.cumsum(random.random(TIMES.size) < 0.01) * 1.0
        ),
    }
    rows: list[dict[str, object]] = []
    for rank in range(n_nodes * GPUS):
        for name, values in usual.items():
            of_node = name.startswith("node_")
            if of_node and rank % GPUS:
                continue
            found: np.ndarray | None = values()
            found = found if change is None else change(name, rank, found)
            if found is None:
                continue
            device = "mlx5_0/1" if of_node else str(rank % GPUS)
            labels = {"node": f"node-{rank // GPUS}", "device": device, "name": name}
            rows += [
                {"time": time, "value": value, **labels}
                for time, value in zip(TIMES.tolist(), found.tolist(), strict=False)
            ]
    rows += [
        {"time": time, "value": value, "node": "node-0", "device": str(rank), "name": name}
        for name, samples in (more or {}).items()
        for rank in range(GPUS)
        for time, value in zip(TIMES.tolist(), samples(rank).tolist(), strict=True)
    ]
    ranks = [
        {"rank": rank, "node": f"node-{rank // GPUS}", "gpu": rank % GPUS} for rank in range(n_nodes * GPUS)
    ]
    job = {"job_id": "bare", "world_size": len(ranks), "start": START, "end": START + SECONDS, "ranks": ranks}
    return rca.Window.from_tables(job, metrics=pa.Table.from_pylist(rows))


def only(metric: str, rank: int, to: Callable[[np.ndarray], np.ndarray | None]) -> Change:
    """Change one metric of one rank."""
    return lambda name, of, values: to(values) if (name, of) == (metric, rank) else values


def first(diagnosis: rca.Diagnosis) -> tuple[list[int], str]:
    return diagnosis.stragglers[0].ranks, diagnosis.causes[0].cause


def from_sample(first: int, to: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Change the samples from number `first` on."""
    return lambda values: np.where(np.arange(values.size) >= first, to(values), values)


def code_of(diagnosis: rca.Diagnosis) -> str | None:
    return None if diagnosis.abstention_reason is None else diagnosis.abstention_reason.code


def test_a_healthy_job_is_healthy_as_far_as_exporters_show() -> None:
    for seed in range(5):
        diagnosis = rca.diagnose(fleet(seed=seed))
        assert (diagnosis.verdict, diagnosis.stragglers, diagnosis.causes) == ("healthy", [], [])
        assert "HEALTHY as far as exporters show" in diagnosis.to_markdown()


def test_a_late_fault_is_suspected_since_its_onset() -> None:
    late = 10
    slower = only("DCGM_FI_DEV_SM_CLOCK", 37, from_sample(TIMES.size - late, lambda clock: 0.55 * clock))
    diagnosis = rca.diagnose(fleet(slower))
    assert (code_of(diagnosis), first(diagnosis)) == ("machine_stands_out", ([37], "gpu_throttling"))
    assert diagnosis.since is not None
    assert diagnosis.since.timestamp() == pytest.approx(TIMES[-late], abs=20.0)
    assert diagnosis.until is None
    shown = diagnosis.causes[0].evidence[1]
    assert shown.value == pytest.approx(0.55 * 1960, rel=0.02)


def test_one_of_two_nodes_at_half_its_clock_is_suspected() -> None:
    """The reference stays with the healthy half where less is worse, too."""
    late = from_sample(TIMES.size - 40, lambda clock: 0.55 * clock)
    slower = fleet(
        lambda name, rank, each: late(each) if "CLOCK" in name and rank >= GPUS else each, n_nodes=2
    )
    diagnosis = rca.diagnose(slower)
    assert (code_of(diagnosis), diagnosis.stragglers[0].nodes) == ("machine_stands_out", ["node-1"])


def test_devices_of_which_most_are_slower_are_not_healthy() -> None:
    """Which of them is at fault is in doubt."""
    slower = fleet(
        lambda name, rank, each: 0.55 * each if "CLOCK" in name and rank >= GPUS else each, n_nodes=3
    )
    assert rca.diagnose(slower).verdict == "undecided"


@for_each("first", [0, 6])
def test_devices_without_samples_are_not_healthy_though_hosts_go_on(first: int) -> None:
    """All devices end, or those of most nodes: exporters of hosts go on after a job."""

    def ended(name: str, rank: int, values: np.ndarray) -> np.ndarray:
        return values[: TIMES.size - 30] if "DCGM" in name and rank >= first else values

    assert rca.diagnose(fleet(ended, n_nodes=4)).verdict == "undecided"


def test_a_fault_is_known_until_the_last_sample_of_a_device() -> None:
    def capped_and_ended(name: str, rank: int, values: np.ndarray) -> np.ndarray:
        if "DCGM" not in name:
            return values
        slow = from_sample(60, lambda clock: 0.55 * clock)
        return (slow(values) if "CLOCK" in name and rank == 5 else values)[: TIMES.size - 20]

    diagnosis = rca.diagnose(fleet(capped_and_ended, n_nodes=2))
    assert diagnosis.until is not None
    assert diagnosis.until.timestamp() == pytest.approx(TIMES[-21], abs=INTERVAL)


def test_a_window_with_few_samples_has_an_onset() -> None:
    """The exporters were started 150 s before the end, and a GPU was capped 90 s later."""
    slower = only("DCGM_FI_DEV_SM_CLOCK", 5, from_sample(TIMES.size - 4, lambda clock: 0.55 * clock))
    whole = fleet(slower, n_nodes=1)
    late = [row for row in whole.metrics.to_pylist() if row["time"] >= TIMES[-10]]
    diagnosis = rca.diagnose(rca.Window.from_tables(whole.job, metrics=late))
    assert code_of(diagnosis) == "machine_stands_out"
    assert diagnosis.since is not None
    assert diagnosis.since.timestamp() == pytest.approx(TIMES[-4], abs=20.0)


def test_an_onset_is_found_although_most_of_the_known_time_is_faulty() -> None:
    slower = only("DCGM_FI_DEV_SM_CLOCK", 5, from_sample(TIMES.size - 24, lambda clock: 0.55 * clock))
    whole = fleet(slower, n_nodes=1)
    late = [row for row in whole.metrics.to_pylist() if row["time"] >= TIMES[-40]]
    diagnosis = rca.diagnose(rca.Window.from_tables(whole.job, metrics=late))
    assert diagnosis.since is not None
    assert diagnosis.since.timestamp() == pytest.approx(TIMES[-24], abs=20.0)


def test_a_single_low_sample_is_no_fault() -> None:
    for at in (TIMES.size // 2, TIMES.size - 2):
        once = only(
            "DCGM_FI_DEV_SM_CLOCK", 37, lambda clock, at=at: np.where(np.arange(clock.size) == at, 300, clock)
        )
        assert code_of(rca.diagnose(fleet(once))) != "machine_stands_out"


def test_a_fault_that_is_over_is_named_and_no_longer_suspected() -> None:
    def for_a_while(clock: np.ndarray) -> np.ndarray:
        at = np.arange(clock.size)
        return np.where((at >= 20) & (at < TIMES.size - 10), 0.5 * clock, clock)

    diagnosis = rca.diagnose(fleet(only("DCGM_FI_DEV_SM_CLOCK", 37, for_a_while)))
    assert (code_of(diagnosis), first(diagnosis)) == ("no_step_times", ([37], "gpu_throttling"))
    assert diagnosis.until is not None
    assert diagnosis.until.timestamp() == pytest.approx(TIMES[-10], abs=20.0)


def test_a_short_fault_that_is_over_keeps_no_job_from_being_healthy() -> None:
    """Over the whole window it is a finding; at the end the devices are alike."""

    def short(clock: np.ndarray) -> np.ndarray:
        at = np.arange(clock.size)
        return np.where((at >= 40) & (at < 52), 0.55 * clock, clock)

    diagnosis = rca.diagnose(fleet(only("DCGM_FI_DEV_SM_CLOCK", 5, short), n_nodes=1))
    assert (diagnosis.verdict, diagnosis.stragglers) == ("healthy", [])


def test_an_xid_code_of_long_ago_is_no_news() -> None:
    def with_code(code: np.ndarray) -> rca.Diagnosis:
        more = {"DCGM_FI_DEV_XID_ERRORS": lambda rank: code if rank == 5 else 0 * TIMES}
        return rca.diagnose(fleet(more=more))

    assert code_of(with_code(np.full(TIMES.size, 48.0))) != "machine_stands_out"
    new = with_code(np.where(TIMES[-12] <= TIMES, 48.0, 0.0))
    assert (code_of(new), new.stragglers[0].ranks) == ("machine_stands_out", [5])


@for_each("last", [1500.0, 1640.0, 1680.0, 1720.0])
def test_a_machine_is_suspected_only_if_a_fault_is_likelier_than_none(last: float) -> None:
    def lower(values: np.ndarray) -> np.ndarray:
        return np.where(np.arange(values.size) >= values.size - 12, last, values)

    diagnosis = rca.diagnose(fleet(only("DCGM_FI_DEV_SM_CLOCK", 37, lower)))
    assert (code_of(diagnosis) == "machine_stands_out") == (diagnosis.failure_mode != "healthy")
    assert "SUSPECTED healthy" not in plain(headline(diagnosis))


def test_a_gpu_at_its_power_cap_with_a_usual_clock_is_no_suspect() -> None:
    capped = {"DCGM_FI_DEV_POWER_VIOLATION": lambda rank: (TIMES - START) * (4e8 if rank == 3 else 0.0)}
    assert code_of(rca.diagnose(fleet(more=capped))) != "machine_stands_out"


def test_an_exporter_that_is_down_stops_no_job() -> None:
    down = rca.diagnose(
        fleet(lambda _, rank, values: values[: TIMES.size // 2] if rank // GPUS == 3 else values)
    )
    assert (down.stragglers, down.verdict) == ([], "undecided")
    assert [each.action for each in down.actions] == []
    assert any("1 of 8 nodes" in note and "node-3" in note for note in down.quality.notes)


def test_a_node_that_is_lost_with_the_work_of_all_others_is_a_stop() -> None:
    def lost(name: str, rank: int, values: np.ndarray) -> np.ndarray:
        if rank // GPUS == 3:
            return values[: TIMES.size // 2]
        return from_sample(TIMES.size // 2, lambda util: 0 * util)(values) if "UTIL" in name else values

    diagnosis = rca.diagnose(fleet(lost))
    assert (diagnosis.failure_mode, diagnosis.stragglers[0].nodes) == ("fail_stop", ["node-3"])


def test_devices_that_all_idle_are_not_healthy() -> None:
    idle = fleet(
        lambda name, _, values: from_sample(80, lambda util: 0 * util)(values) if "UTIL" in name else values
    )
    assert rca.diagnose(idle).verdict == "undecided"


def test_of_64_ranks_the_gpu_at_60_percent_clock_is_named() -> None:
    diagnosis = rca.diagnose(fleet(only("DCGM_FI_DEV_SM_CLOCK", 37, lambda clock: 0.6 * clock)))
    assert first(diagnosis) == ([37], "gpu_throttling")
    assert diagnosis.stragglers[0].nodes == ["node-4"]
    assert diagnosis.failure_mode == "fail_slow"
    assert diagnosis.abstained
    assert diagnosis.causes[0].without_price
    shown = diagnosis.causes[0].evidence[1]
    assert shown.signal == "sm_clock_mhz"
    assert shown.value == pytest.approx(1176, rel=0.01)
    assert shown.reference == pytest.approx(1960, rel=0.01)


def test_a_port_whose_errors_grow_is_named_the_more_the_surer() -> None:
    surer = []
    for per_sample in (10.0, 100.0, 30_000.0):
        grows = only(
            "node_infiniband_port_errors_received_total",
            16,
            lambda errors, by=per_sample: errors + by * np.arange(errors.size),
        )
        diagnosis = rca.diagnose(fleet(grows))
        assert first(diagnosis) == (list(range(16, 24)), "nic_degradation")
        assert diagnosis.stragglers[0].scope == "node"
        surer.append(diagnosis.stragglers[0].probability)
    assert surer == sorted(surer)


def test_a_slow_link_of_one_gpu_is_named() -> None:
    assert first(rca.diagnose(fleet(only("DCGM_FI_DEV_PCIE_LINK_GEN", 5, lambda gen: gen - 3)))) == (
        [5],
        "pcie_degradation",
    )


def test_a_gpu_whose_series_disappear_is_named() -> None:
    gone = rca.diagnose(fleet(lambda _, rank, values: values[: TIMES.size // 2] if rank == 12 else values))
    assert gone.stragglers[0].ranks == [12]
    assert gone.failure_mode == "fail_stop"
    assert gone.causes[0].evidence[1].signal == "series_ended"
    assert gone.causes[0].evidence[1].value == pytest.approx(SECONDS / 2, abs=2 * INTERVAL)
    assert "rank 12" in gone.next_check
    assert "Xid 79" in gone.next_check


def test_series_that_all_end_together_blame_no_rank() -> None:
    ended = rca.diagnose(fleet(lambda _, rank, values: values[: TIMES.size // 2]))
    assert ended.stragglers == []


def test_a_device_that_is_released_while_others_are_in_use_is_named() -> None:
    def released(name: str, rank: int, values: np.ndarray) -> np.ndarray:
        half = np.arange(values.size) >= values.size // 2
        emptied = name in ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL") and rank == 20
        return np.where(half, 0.0, values) if emptied else values

    diagnosis = rca.diagnose(fleet(released))
    assert first(diagnosis) == ([20], "process_crash")
    assert "did its process end" in diagnosis.next_check


def test_a_fleet_of_unequal_memory_has_no_released_device() -> None:
    less = fleet(lambda name, rank, values: 0.4 * values if "FB_USED" in name and rank % 3 == 0 else values)
    assert rca.diagnose(less).stragglers == []


def test_a_failure_in_the_events_is_named() -> None:
    bare = fleet()
    events = [{"time": START + 60, "rank": 9, "kind": "xid", "code": "79"}]
    table = pa.Table.from_pylist(events)
    diagnosis = rca.diagnose(rca.Window.from_tables(bare.job, metrics=bare.metrics, events=table))
    assert (diagnosis.failure_mode, first(diagnosis)) == ("fail_stop", ([9], "process_crash"))
    assert "events report" in diagnosis.next_check


def test_without_anything_to_compare_no_mode_is_likely() -> None:
    job = {"job_id": "j", "world_size": 1, "start": START, "end": START + 60}
    sample = pa.Table.from_pylist(
        [{"time": START + 1, "name": "DCGM_FI_DEV_SM_CLOCK", "value": 1.0, "rank": 0}]
    )
    diagnosis = rca.diagnose(rca.Window.from_tables(job, metrics=sample))
    assert max(diagnosis.failure_mode_probability.values()) < 0.35
    assert "could be compared" in diagnosis.next_check


def test_two_faults_on_two_machines_are_both_named() -> None:
    def both(name: str, rank: int, values: np.ndarray) -> np.ndarray:
        if (name, rank) == ("DCGM_FI_DEV_SM_CLOCK", 37):
            return 0.5 * values
        return values - 3 if (name, rank) == ("DCGM_FI_DEV_PCIE_LINK_GEN", 5) else values

    found = {each.ranks[0] for each in rca.diagnose(fleet(both)).stragglers}
    assert found == {5, 37}


def test_two_kinds_of_machines_are_no_outliers() -> None:
    mixed = rca.diagnose(
        fleet(lambda name, rank, values: 0.6 * values if "CLOCK" in name and rank >= 32 else values)
    )
    assert mixed.stragglers == []


def test_the_command_is_not_certain_and_names_the_rank(tmp_path: Path) -> None:
    fleet(only("DCGM_FI_DEV_SM_CLOCK", 37, lambda clock: 0.6 * clock)).to_directory(tmp_path / "w")
    result = CliRunner().invoke(app, ["diagnose", str(tmp_path / "w")])
    assert result.exit_code == 30
    assert "rank 37" in result.stdout.splitlines()[0]


def test_every_cause_of_a_resource_has_a_measured_probability() -> None:
    specific = set(resource_names()) - UNSPECIFIC
    assert set(RIGHT) == specific
    assert all(cause_of_resource(name) is not None for name in specific)
    assert all(0 < chance < 1 for pair in RIGHT.values() for chance in pair)


def test_a_window_with_neither_steps_nor_metrics_is_refused() -> None:
    job = {"job_id": "j", "world_size": 2, "start": START, "end": START + 60}
    with pytest.raises(rca.InvalidWindow, match="empty window"):
        rca.Window.from_tables(job)
