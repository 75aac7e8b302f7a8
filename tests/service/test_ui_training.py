"""`/ui` with a real training: upload, diagnosis, feedback, training by a worker, the gate, promotion."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from served_ui import served
from test_training_end_to_end import Installation

import rca
from rca.lab.training.registry import Registry

pytestmark = [
    pytest.mark.system,
    pytest.mark.long,
    # MLflow asks SQLAlchemy for it.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]


def test_a_model_is_trained_on_feedback_refused_by_the_gate_and_promoted_all_the_same(
    tmp_path: Path, real_windows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    window = tmp_path / "window.json"
    window.write_bytes(rca.read_window(real_windows / "cpu-contention-node").to_json())
    folder = tmp_path / "data"
    folder.mkdir()
    # For the service and the worker.
    monkeypatch.setenv("RCA_GATE_WINDOWS", "20")
    installation = Installation(folder)
    with (
        served(folder, follow_seconds=1.0) as (url, key),
        installation.worker(),
        playwright.sync_playwright() as started,
    ):
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page()
        page.set_default_timeout(30_000)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))

        page.goto(f"{url}/ui#/upload")
        page.get_by_label("API key or token").fill(key)
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.get_by_label("File with a telemetry window").set_input_files(window)
        page.get_by_role("button", name="Diagnose").click()
        page.get_by_role("button", name="The diagnosis is right").click()
        page.wait_for_selector("text=Your feedback is stored (confirmed)")

        page.get_by_role("link", name="Training").click()
        page.get_by_label("Simulated windows").fill("200")
        page.get_by_role("button", name="Start training").click()
        page.wait_for_selector("text=Training, running", timeout=60_000)
        page.wait_for_selector("progress")
        page.wait_for_selector("text=Training, succeeded", timeout=900_000)
        assert "refused" in page.inner_text("dl:has-text('Result')")

        page.get_by_role("link", name="Models").click()
        page.wait_for_selector("text=Gate: ✕ refused: worse against shipped")
        page.get_by_role("button", name="Promote version 1").click()
        page.get_by_label("Reason").fill("a rehearsal")
        page.get_by_role("dialog").get_by_role("button", name="Promote").click()
        page.wait_for_selector("text=Version 1 is the champion now")
        for _ in range(60):
            page.reload()
            page.wait_for_selector("h2:has-text('All versions')")
            if page.get_by_text("Version 1 answers").count():
                break
            page.wait_for_timeout(1000)
        assert page.get_by_text("Version 1 answers").count() == 1
        (version,) = installation.registry.versions()
        assert (version["aliases"], version["tags"]["promotion.forced"]) == (["champion"], "a rehearsal")
        runs = Registry(f"sqlite:///{folder / 'mlflow.db'}")
        run = runs.client().get_run(runs.get("1").run_id)
        assert run.info.run_name.startswith("200 simulated, 1 of feedback, seed ")
        assert run.data.tags["mlflow.note.content"].startswith("Worse than the shipped bundle: ")
        assert complaints == []
        browser.close()
    installation.registry.close()
    installation.database.close()
