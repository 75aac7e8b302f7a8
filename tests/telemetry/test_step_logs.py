"""Step lines of trainers become steps."""

from __future__ import annotations

from pathlib import Path

import pytest

import rca
from rca.errors import InvalidInput


def steps(folder: Path, lines: list[str], name: str = "job.log") -> dict[tuple[int, int], float]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")
    rows = rca.read_window(folder).steps.to_pylist()
    return {(row["rank"], row["step"]): pytest.approx(row["step_seconds"], abs=1e-6) for row in rows}


def test_lines_with_a_time_have_the_mean_since_the_line_before(tmp_path: Path) -> None:
    lines = [
        f"[titan] 2025-05-01 10:00:{20 * number:02},000 - root - INFO - step: {10 * number}  loss:  7.10"
        for number in range(3)
    ]
    assert steps(tmp_path, lines) == {(0, 10): 2.0, (0, 20): 2.0}
    assert "one report in 10 steps: values are means over them" in rca.read_window(tmp_path).notes


def test_lines_with_a_duration_need_no_time(tmp_path: Path) -> None:
    lines = [f"completed step: {step}, seconds: {1.5 + step}, TFLOP/s/device: 180.1" for step in range(3)]
    assert steps(tmp_path, lines) == {(0, 0): 1.5, (0, 1): 2.5, (0, 2): 3.5}
    nemo = ["Epoch 0: 5%| | 5/100 [00:10<03:00, global_step=5.000, train_step_timing in s=0.520]"]
    nemo += [nemo[0].replace("=5.000", "=6.000").replace("0.520", "0.540")]
    assert steps(tmp_path / "nemo", nemo) == {(0, 5): 0.52, (0, 6): 0.54}


def test_progress_bars_between_a_trainers_dictionaries_are_steps(tmp_path: Path) -> None:
    bars = [f" 33%|███  | {570 + n}/1725 [3:03:{10 * n:02}<6:06:20, 19.11s/it]" for n in range(4)]
    text = [each for bar in bars for each in ("{'loss': 1.652, 'epoch': 1.0}", bar)]
    assert steps(tmp_path, text) == {(0, 571): 10.0, (0, 572): 10.0, (0, 573): 10.0}


def test_each_rank_of_labelled_lines_has_its_steps(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]: 2025-05-01 10:00:{3 * step + rank:02} step {step}"
        for step in range(3)
        for rank in (0, 1)
    ]
    assert steps(tmp_path, lines) == {(rank, step): 3.0 for rank in (0, 1) for step in (1, 2)}


def test_one_step_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"job\.log: step lines, but no two steps"):
        steps(tmp_path, ["2025-05-01 10:00:00 step 1"])


def test_the_bar_of_an_evaluation_is_no_training(tmp_path: Path) -> None:
    bars = [f" 33%|███  | {500 + n}/1000 [{10 * n // 60}:{10 * n % 60:02}<16:20, 10.0s/it]" for n in range(6)]
    other = [f"100%|███  | {n}/50 [00:{n:02}<00:01, 1.0s/it]" for n in range(20)]
    assert steps(tmp_path, [*bars[:3], *other, *bars[3:]]) == {(0, 500 + n): 10.0 for n in range(1, 6)}


def test_lines_of_keras_count_on_over_epochs(tmp_path: Path) -> None:
    lines = [
        text
        for epoch in range(2)
        for text in (
            f"Epoch {epoch + 1}/2",
            "20/40 [==========>...........] - 1s 50ms/step - loss: 0.4",
            "40/40 ━━━━━━━━━━━━━━━━━━━━ 2s 60ms/step - loss: 0.3",
        )
    ]
    assert steps(tmp_path, lines) == {(0, 20): 0.05, (0, 40): 0.06, (0, 60): 0.05, (0, 80): 0.06}


def test_the_history_of_wandb_has_steps(tmp_path: Path) -> None:
    rows = [f'{{"loss": 3.1, "_timestamp": {1746525600 + 2 * n}.5, "_step": {n}}}' for n in range(3)]
    assert steps(tmp_path, rows, "wandb-history.jsonl") == {(0, 1): 2.0, (0, 2): 2.0}
