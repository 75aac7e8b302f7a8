from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rca.lab.testbed.sampling import host_signals, parsers
from rca.lab.testbed.sampling.host_signals import sample_machine, sample_process
from rca.lab.testbed.sampling.sampler import CpuAccount
from rca.lab.testbed.sampling.series import Series
from rca.window.catalogue import resolve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the testbed is Linux")

TICK = 1.0 / os.sysconf("SC_CLK_TCK")
STAT = "77 (python (x) y) T 1 77 77 0 -1 4194560 1201 0 3 0 250 50 0 0 20 0 3 0 900 1048576 2048 99 0 0"
STATUS = "Name:\tpython\nVmRSS:\t 8192 kB\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t7\n"
MACHINE = "cpu  100 0 50 800 50 0 0 10 0 0\ncpu0 60 0 20 400 20 0 0 5 0 0\nctxt 12345\n"


def test_a_process_name_may_hold_parentheses():
    assert parsers.page_faults(STAT) == (1201, 3)


def test_schedstat_is_in_seconds():
    assert parsers.schedstat("1500000000 250000000 42\n") == (1.5, 0.25, 42)


def test_pressure_totals_are_in_seconds():
    text = "some avg10=0.00 avg60=1.20 avg300=0.10 total=2500000\nfull avg10=0.00 avg60=0.00 total=1000\n"
    assert parsers.pressure(text) == {"some": 2.5, "full": 0.001}


def test_two_line_tables_become_prefixed_counters():
    text = "Tcp: RtoMin RetransSegs\nTcp: 200 -1\nUdp: InDatagrams\nUdp: 5\n"
    assert parsers.paired_counters(text) == {"Tcp_RtoMin": 200, "Tcp_RetransSegs": -1, "Udp_InDatagrams": 5}


def test_both_versions_of_a_groups_cpu_stat_are_understood():
    assert parsers.group_throttling("nr_periods 9\nnr_throttled 4\nthrottled_time 2000000000\n") == (4, 2.0)
    assert parsers.group_throttling("usage_usec 5\nnr_throttled 4\nthrottled_usec 2000000\n") == (4, 2.0)
    assert parsers.group_throttling("usage_usec 5\n") is None
    assert parsers.group_cpu("usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n")["user"] == 2.0


def test_both_versions_of_a_groups_reads_are_understood():
    assert parsers.group_reads("254:0 Read 4096\n254:0 Write 7\nTotal 4103\n") == {"254:0": 4096}
    assert parsers.group_reads("254:0 rbytes=4096 wbytes=7 rios=1\n") == {"254:0": 4096}


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A proc file system with one stopped process of two threads, one CPU and one disk."""
    files = {
        "stat": "cpu 100 0 50 800 50 0 0 10 0 0\ncpu0 60 0 20 400 20 0 0 5 7 0\n"
        "btime 1\nctxt 12345\nintr 1\nsoftirq 1\n",
        "meminfo": "MemTotal: 16 kB\nMemFree: 4 kB\nMemAvailable: 8 kB\n"
        "Buffers: 1 kB\nCached: 1 kB\nActive: 1 kB\n"
        "Inactive: 1 kB\nShmem: 1 kB\nSlab: 1 kB\n",
        "vmstat": "pgmajfault 9\n",
        "diskstats": " 254 0 vda 10 0 16 250 5 0 8 100 0 300 350\n 254 1 vda1 1 0 1 1 1 0 1 1 0 1 1\n",
        "77/stat": STAT + " 0" * 30,
        "77/statm": "9 2048 1 1 0 1 0\n",
        "77/status": STATUS,
        "77/io": "rchar: 1\nwchar: 1\nsyscr: 1\nsyscw: 1\nread_bytes: 512\nwrite_bytes: 0\n",
    }
    for thread in (77, 78):
        files[f"77/task/{thread}/schedstat"] = "1000000000 500000000 10"
        files[f"77/task/{thread}/status"] = STATUS
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.setattr(host_signals, "PROC", tmp_path)
    return tmp_path


def sampled_process(pid: int) -> Series:
    series = Series()
    sample_process(series, 5.0, pid, "host", node="node-0", rank=3)
    return series


def test_a_process_is_sampled_under_the_exporters_names_with_its_threads_added_up(proc):
    series = sampled_process(77)
    assert {(each.name, each.device): each.value for each in series.samples} == {
        ("process_schedstat_running_seconds_total", "host"): 2.0,
        ("process_schedstat_waiting_seconds_total", "host"): 1.0,
        ("process_schedstat_timeslices_total", "host"): 20,
        ("process_minor_page_faults_total", "host"): 1201,
        ("process_major_page_faults_total", "host"): 3,
        ("process_resident_memory_bytes", "host"): 2048 * os.sysconf("SC_PAGE_SIZE"),
        ("process_io_read_bytes_total", "host"): 512,
        ("process_state_running", "host"): 0,
        ("process_state_stopped", "host"): 1,
        ("process_cpu_seconds_total", "host/user"): pytest.approx(250 * TICK),
        ("process_cpu_seconds_total", "host/system"): pytest.approx(50 * TICK),
        ("process_context_switches_total", "host/voluntary"): 80,
        ("process_context_switches_total", "host/nonvoluntary"): 14,
    }
    assert {(each.time, each.node, each.rank) for each in series.samples} == {(5.0, "node-0", 3)}


@pytest.mark.system
def test_a_process_that_has_ended_leaves_no_sample():
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert sampled_process(ended.pid).samples == []


def test_a_machine_is_sampled_under_the_exporters_names_in_their_units(proc):
    series = Series()
    sample_machine(series, 5.0, "vda")
    held = {(each.name, each.device): each.value for each in series.samples}
    del held["node_load1", None]
    modes = {
        "user": 60,
        "nice": 0,
        "system": 20,
        "idle": 400,
        "iowait": 20,
        "irq": 0,
        "softirq": 0,
        "steal": 5,
    }
    assert held == {
        ("node_context_switches_total", None): 12345,
        ("node_memory_MemTotal_bytes", None): 16384,
        ("node_memory_MemFree_bytes", None): 4096,
        ("node_memory_MemAvailable_bytes", None): 8192,
        ("node_vmstat_pgmajfault", None): 9,
        ("node_disk_reads_completed_total", "vda"): 10,
        ("node_disk_read_bytes_total", "vda"): 8192,
        ("node_disk_read_time_seconds_total", "vda"): 0.25,
        ("node_disk_io_time_seconds_total", "vda"): 0.3,
    } | {("node_cpu_seconds_total", f"0/{mode}"): pytest.approx(n * TICK) for mode, n in modes.items()}


def test_a_disk_that_is_not_listed_leaves_no_sample(proc):
    series = Series()
    sample_machine(series, 5.0, "sda")
    assert not any(each.name.startswith("node_disk") for each in series.samples)


def test_every_metric_name_is_in_the_catalogue(proc):
    series = sampled_process(77)
    sample_machine(series, 5.0, "vda")
    assert {each.name for each in series.samples if resolve(each.name) is None} == set()


def test_foreign_cpu_time_is_the_machines_without_our_own(proc):
    def write(name: str, old: str, new: str) -> None:
        file: Path = proc / name
        file.write_text(file.read_text().replace(old, new))

    account = CpuAccount()
    assert account.foreign_cpu_share(2) == 0.0
    account.observe(10.0, [77])
    write("77/stat", " 250 50 ", " 300 50 ")
    write("stat", "cpu 100 0 50 800", "cpu 250 0 50 900")
    account.observe(11.0, [77, 78])
    assert account.foreign_cpu_share(2) == pytest.approx((150 - 50) * TICK / 2)
