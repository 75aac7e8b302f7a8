from __future__ import annotations

import os

import pytest

from rca.lab.testbed.sampling import parsers
from rca.lab.testbed.sampling.host_signals import sample_process
from rca.lab.testbed.sampling.sampler import CpuAccount
from rca.lab.testbed.sampling.series import Series

TICK = 1.0 / os.sysconf("SC_CLK_TCK")
STAT = "77 (python (x) y) T 1 77 77 0 -1 4194560 1201 0 3 0 250 50 0 0 20 0 3 0 900 1048576 2048 99 0 0"
STATUS = "Name:\tpython\nVmRSS:\t 8192 kB\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t7\n"
MACHINE = "cpu  100 0 50 800 50 0 0 10 0 0\ncpu0 60 0 20 400 20 0 0 5 0 0\nctxt 12345\n"


def test_a_process_name_may_hold_parentheses():
    stat = parsers.process_stat(STAT)
    assert (stat.state, stat.minor_faults, stat.major_faults, stat.resident_pages) == ("T", 1201, 3, 2048)
    assert stat.user_seconds == pytest.approx(250 * TICK)
    assert stat.system_seconds == pytest.approx(50 * TICK)


def test_schedstat_is_in_seconds():
    assert parsers.schedstat("1500000000 250000000 42\n") == (1.5, 0.25, 42)


def test_pressure_totals_are_in_seconds():
    text = "some avg10=0.00 avg60=1.20 avg300=0.10 total=2500000\nfull avg10=0.00 avg60=0.00 total=1000\n"
    assert parsers.pressure(text) == {"some": 2.5, "full": 0.001}


def test_cpu_times_are_kept_by_cpu_and_mode():
    times = parsers.cpu_times(MACHINE)
    assert set(times) == {"", "0"}
    assert times["0"]["steal"] == pytest.approx(5 * TICK)
    assert parsers.busy_seconds(times[""]) == pytest.approx(160 * TICK)


def test_two_line_tables_become_prefixed_counters():
    text = "Tcp: RtoMin RetransSegs\nTcp: 200 -1\nUdp: InDatagrams\nUdp: 5\n"
    assert parsers.paired_counters(text) == {"Tcp_RtoMin": 200, "Tcp_RetransSegs": -1, "Udp_InDatagrams": 5}


def test_an_interface_is_found_by_its_whole_name():
    text = (
        "Inter-|   Receive  |  Transmit\n face |bytes packets\n"
        "  eth0: 1000 10 0 1 0 0 0 0 2000 20 0 2 0 0 0 0\n eth01: 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7\n"
    )
    counters = parsers.interface_counters(text, "eth0")
    assert (counters["receive_bytes"], counters["transmit_bytes"], counters["transmit_drop"]) == (
        1000,
        2000,
        2,
    )
    assert parsers.interface_counters(text, "eth") == {}


def test_a_disk_counts_sectors_and_milliseconds():
    text = " 254 0 vda 10 0 16 250 5 0 8 100 0 300 350\n 254 1 vda1 1 0 1 1 1 0 1 1 0 1 1\n"
    held = parsers.disk_counters(text, "vda")
    assert held == {
        "reads_completed": 10.0,
        "read_bytes": 8192.0,
        "read_time_seconds": 0.25,
        "io_time_seconds": 0.3,
    }
    assert parsers.disk_counters(text, "sda") == {}


def test_both_versions_of_a_groups_cpu_stat_are_understood():
    assert parsers.group_throttling("nr_periods 9\nnr_throttled 4\nthrottled_time 2000000000\n") == (4, 2.0)
    assert parsers.group_throttling("usage_usec 5\nnr_throttled 4\nthrottled_usec 2000000\n") == (4, 2.0)
    assert parsers.group_throttling("usage_usec 5\n") is None
    assert parsers.group_cpu("usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n")["user"] == 2.0


def test_both_versions_of_a_groups_reads_are_understood():
    assert parsers.group_reads("254:0 Read 4096\n254:0 Write 7\nTotal 4103\n") == {"254:0": 4096}
    assert parsers.group_reads("254:0 rbytes=4096 wbytes=7 rios=1\n") == {"254:0": 4096}


def fake_process(proc, pid, stat=STAT):
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(stat)
    (proc / str(pid) / "io").write_text("rchar: 1\nread_bytes: 512\n")
    for thread in (task, task.with_name("78")):
        thread.mkdir(exist_ok=True)
        (thread / "schedstat").write_text("1000000000 500000000 10")
        (thread / "status").write_text(STATUS)


def test_threads_are_added_up_under_the_exporters_names(tmp_path):
    fake_process(tmp_path, 77)
    series = Series()
    sample_process(series, 5.0, 77, "host", node="node-0", rank=3, proc=tmp_path)
    held = {(each.name, each.device): each.value for each in series.samples}
    assert held["process_schedstat_waiting_seconds_total", "host"] == 1.0
    assert held["process_context_switches_total", "host/nonvoluntary"] == 14
    assert held["process_state_stopped", "host"] == 1
    assert {(each.time, each.node, each.rank) for each in series.samples} == {(5.0, "node-0", 3)}


def test_a_process_that_has_ended_leaves_no_sample(tmp_path):
    series = Series()
    sample_process(series, 5.0, 77, "host", node="node-0", rank=3, proc=tmp_path)
    assert series.samples == []


def test_every_metric_name_is_in_the_catalogue(tmp_path):
    from rca.window.catalogue import resolve

    fake_process(tmp_path, 77)
    series = Series()
    sample_process(series, 5.0, 77, "host", node="node-0", rank=3, proc=tmp_path)
    assert {each.name for each in series.samples if resolve(each.name) is None} == set()


def test_foreign_cpu_time_is_the_machines_without_our_own(tmp_path):
    fake_process(tmp_path, 77)
    stat = tmp_path / "stat"
    stat.write_text("cpu 100 0 0 0 0 0 0 0\n")
    account = CpuAccount(tmp_path)
    assert account.foreign_cpu_share(2) == 0.0
    account.observe(10.0, [77])
    (tmp_path / "77" / "stat").write_text(STAT.replace(" 250 50 ", " 300 50 "))
    stat.write_text("cpu 250 0 0 0 0 0 0 0\n")
    account.observe(11.0, [77, 78])
    assert account.foreign_cpu_share(2) == pytest.approx((150 - 50) * TICK / 2)
