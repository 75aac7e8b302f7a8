"""The rank and the node of a line: what files, folders and other lines of a folder say about it."""

from __future__ import annotations

from pathlib import Path

from logs_of_jobs import answer_of

import rca
from rca.sources.logs.file_names import writers_of_files
from rca.sources.logs.line_labels import NOBODY, Writer, without_prefix, writer_of
from tests.for_each import for_each

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB. GPU {} has"
COMM = "{host}:61{rank}:700 [{gpu}] NCCL INFO comm 0x7f{rank} rank {rank} nranks 8 cudaDev {gpu} "
COMM += "nvmlDev {gpu} busId {gpu}b000 commId 0x5de0 - Init COMPLETE\n"


def written(folder: Path, files: dict[str, str]) -> rca.Diagnosis:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return rca.diagnose(rca.read_window(folder))


def named(answer: rca.Diagnosis) -> list[tuple[list[int], list[str]]]:
    return [(each.ranks, each.nodes) for each in answer.stragglers]


LABELS = [
    ("[rank3]: ValueError: a", Writer(rank=3)),
    ("[1,5]<stderr>:ValueError: a", Writer(rank=5)),
    ("(Worker_TP2 pid=2117) ERROR 11-18 14:16:34 [a.py:1] ValueError: a", Writer(rank=2)),
    ("[2025-08-08 03:11:31 DP1 TP3] Scheduler hit an exception", Writer(rank=3)),
    ("2024-05-01 10:12:03,310 ERROR [rank=4] trainer: a", Writer(rank=4)),
    ("ERROR (global rank: 7) failed", Writer(rank=7)),
    (" 3: ValueError: a", Writer(task=3)),
    ("[default3]:ValueError: a", Writer(local=3)),
    ("[pod/llm-worker-4/pytorch] ValueError: a", Writer(node="llm-worker-4")),
    ("trainer-3  | ValueError: a", Writer(node="trainer-3")),
    ("worker-2: ValueError: a", Writer(node="worker-2")),
    ("(RayTrainWorker pid=8123, ip=10.0.7.9) ValueError: a", Writer(node="10.0.7.9")),
    (
        "[2025-11-05 08:12:41] node-h:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN a",
        Writer(node="node-h"),
    ),
    ("urllib3.exceptions.MaxRetryError: a", NOBODY),
    ("step-12: loss 3.1", NOBODY),
]


@for_each("case", LABELS, [text for text, _ in LABELS])
def test_the_label_of_a_line_is_its_writer(case: tuple[str, Writer]) -> None:
    assert writer_of(case[0]) == case[1]


def test_prefixes_of_launchers_are_no_text_of_the_process() -> None:
    text = "2025-11-28T10:00:00.123456789Z stderr F [1,0]<stderr>:[rank0]: Missing ranks:"
    assert without_prefix(text) == "Missing ranks:"


def test_a_number_in_a_files_name_is_a_task_only_if_files_are_numbered_from_zero() -> None:
    def writers(*names: str) -> list[Writer]:
        return [*writers_of_files([Path("job") / name for name in names]).values()]

    assert writers("train_log_2.txt") == [NOBODY]
    assert writers("worker-1.log", "worker-2.log") == [NOBODY, NOBODY]
    assert writers("worker-0.log", "worker-1.log") == [Writer(task=0), Writer(task=1)]
    assert writers("rank7.log") == [Writer(rank=7)]
    assert writers("gpu-1/dmesg", "gpu-2/dmesg") == [Writer(node="gpu-1"), Writer(node="gpu-2")]
    assert writers("attempt_0/2/stderr.log") == [Writer(local=2)]


def test_a_gpu_number_finds_its_rank_by_the_nccl_lines_of_its_file(tmp_path: Path) -> None:
    first = "".join(COMM.format(host="pod-0", rank=rank, gpu=rank) for rank in range(4))
    second = "".join(COMM.format(host="pod-1", rank=4 + gpu, gpu=gpu) for gpu in range(4))
    answer = written(tmp_path, {"pod-0.log": first, "llm-worker-1.log": second + OOM.format(2)})
    assert (named(answer), answer.abstained) == ([([6], ["pod-1"])], False)


def test_folders_of_torchrun_hold_local_ranks(tmp_path: Path) -> None:
    files = {
        f"gpu-{node}/none_1/attempt_0/{local}/stderr.log": COMM.format(
            host=f"gpu-{node}", rank=2 * "ab".index(node) + local, gpu=local
        )
        for node in "ab"
        for local in range(2)
    }
    files["gpu-b/none_1/attempt_0/1/stderr.log"] += "RuntimeError: CUDA error: device-side assert triggered\n"
    assert named(written(tmp_path, files)) == [([3], ["gpu-b"])]


def test_local_ranks_of_two_launchers_are_no_ranks(tmp_path: Path) -> None:
    line = "E0506 12:41:{}.300000 139 elastic/multiprocessing/api.py:869] failed (exitcode: {}) "
    line += "local_rank: {} (pid: {}) of binary: /opt/conda/bin/python\n"
    files = {"node-a.log": line.format(40, 1, 0, 4206), "node-b.log": line.format(12, -9, 3, 9206)}
    answer = written(tmp_path, files)
    assert (answer.abstained, named(answer)) == (True, [])


def test_the_folder_of_a_node_names_it(tmp_path: Path) -> None:
    xid = "[Tue Aug 19 02:04:26 2025] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    fired = "[rank{0}]:[E819 02:14:30.110 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective "
    fired += "operation timeout: WorkNCCL(SeqNum=78, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) "
    fired += "ran for 600060 milliseconds before timing out.\n"
    log = "using world size: 16\n" + "".join(fired.format(rank) for rank in range(8))
    answer = written(tmp_path, {"gpu-06/train.log": log, "gpu-07/dmesg.txt": xid})
    assert named(answer) == [([], ["gpu-07"])]


def test_the_first_gpu_names_no_rank_without_a_sign_of_a_second_gpu(tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. GPU {} has a total capacity of 79.11 GiB\n"
    alone = answer_of(tmp_path / "one", error.format(0))
    assert alone.abstained
    assert not alone.stragglers
    assert [each.ranks for each in answer_of(tmp_path / "other", error.format(3)).stragglers] == [[3]]
