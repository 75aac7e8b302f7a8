"""`/ui` in Chromium: from the key to the promotion, offline, by keyboard, in both themes, at 360 pixels."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from oidc_provider import CLIENT, provided
from page_visits import FOCUSED, MANY, PALE, REACHABLE, Visit
from served_ui import Registry, served

import rca

pytestmark = pytest.mark.system

PARTS = ("", "upload", "compare", "models", "training", "nodes")


@pytest.fixture(scope="module")
def visit(
    tmp_path_factory: pytest.TempPathFactory, real_windows: Path, request: pytest.FixtureRequest
) -> Iterator[Visit]:
    """Sign in and upload a window, as a person does."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    window = tmp_path_factory.mktemp("upload") / "window.json"
    window.write_bytes(rca.read_window(real_windows / "cpu-contention-node").to_json())
    with (
        provided() as provider,
        served(
            tmp_path_factory.mktemp("service"),
            Registry(),
            oidc_issuer=provider.issuer,
            oidc_client_id=CLIENT,
        ) as (
            url,
            key,
        ),
        playwright.sync_playwright() as started,
    ):
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
        page.set_default_timeout(15_000)
        visit = Visit(page, url, "", provider)
        page.on(
            "console",
            lambda message: visit.complaints.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        page.on("request", lambda sent: visit.requests.append(sent.url))
        page.goto(f"{url}/ui")
        page.get_by_label("API key or token").fill(key)
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.wait_for_selector("text=There is no diagnosis yet")
        visit.go("/upload")
        page.get_by_label("File with a telemetry window").set_input_files(window)
        page.get_by_role("button", name="Diagnose").click()
        page.wait_for_selector("main svg", timeout=60_000)
        visit.diagnosis = page.url.rpartition("/")[2]
        incidents = page.request.get(f"{url}/v1/incidents", headers={"Authorization": f"Bearer {key}"})
        visit.incident = incidents.json()["items"][0]["id"]
        yield visit
        browser.close()


@pytest.fixture
def stranger(visit: Visit) -> Iterator[Any]:
    """Another tab that has not signed in."""
    context = visit.page.context.browser.new_context()
    page = context.new_page()
    page.set_default_timeout(15_000)
    yield page
    context.close()


def test_an_account_at_the_issuer_signs_in_and_comes_back_to_the_part(visit: Visit, stranger: Any) -> None:
    requests: list[str] = []
    complaints: list[str] = []
    stranger.on("request", lambda sent: requests.append(sent.url))
    stranger.on("console", lambda message: complaints.append(message.text))
    stranger.goto(f"{visit.url}/ui#/compare")
    stranger.wait_for_selector("text=Sign in with your account")
    assert not stranger.locator("#sign-out").is_visible()
    stranger.get_by_role("button", name="Sign in with your account").click()
    stranger.wait_for_selector("h1:has-text('Compare')")
    assert stranger.url == f"{visit.url}/ui#/compare"
    stranger.get_by_role("link", name="Incidents").click()
    stranger.wait_for_selector("text=Latest diagnoses")
    assert stranger.get_by_role("button", name="Sign out").is_visible()
    elsewhere = [
        each.partition("?")[0] for each in requests if not each.startswith((f"{visit.url}/", "data:"))
    ]
    # The browser goes to the issuer as to a page; the page itself sends nothing there.
    assert elsewhere == [f"{visit.provider.issuer}/authorize"]
    assert complaints == []


def test_a_sign_in_that_was_refused_or_began_elsewhere_is_none(visit: Visit, stranger: Any) -> None:
    stranger.goto(f"{visit.url}/ui?code=planted&state=foreign")
    stranger.wait_for_selector("text=The sign-in did not begin in this tab")
    assert stranger.url == f"{visit.url}/ui"
    visit.provider.refusal = "access_denied"
    stranger.get_by_role("button", name="Sign in with your account").click()
    stranger.wait_for_selector("text=access_denied")
    visit.provider.refusal = None
    assert stranger.evaluate("sessionStorage.length") == 0


def test_a_link_of_someone_else_ends_no_sign_in(visit: Visit, stranger: Any) -> None:
    planted = f"{visit.url}/ui?code=planted&state=foreign#/compare"
    stranger.goto(f"{visit.url}/ui")
    begun = '{"state": "own", "verifier": "v", "part": ""}'
    stranger.evaluate("begun => sessionStorage.setItem('rca-sign-in', begun)", begun)
    stranger.goto(planted)
    stranger.wait_for_selector("text=The sign-in did not begin in this tab")
    assert stranger.evaluate("sessionStorage.getItem('rca-sign-in')") == begun
    stranger.get_by_role("button", name="Sign in with your account").click()
    stranger.wait_for_selector("h1:has-text('Compare')")
    stranger.goto(planted)
    stranger.wait_for_selector("h1:has-text('Compare')")
    assert stranger.url == f"{visit.url}/ui#/compare"


def test_an_account_without_a_scope_is_sent_to_the_issuer_not_to_a_key(visit: Visit, stranger: Any) -> None:
    stranger.route("**/v1/nodes*", lambda route: route.fulfill(status=403, json={"detail": "no"}))
    stranger.goto(f"{visit.url}/ui#/nodes")
    stranger.get_by_role("button", name="Sign in with your account").click()
    stranger.wait_for_selector("text=Ask an administrator for its scope at the issuer")


def test_a_table_is_uploaded_as_the_job_of_its_file(visit: Visit, tmp_path: Path) -> None:
    table = tmp_path / "times of ranks.csv"
    lines = [f"{rank},{step},{500 if rank else 510}" for step in range(30) for rank in range(4)]
    table.write_text("\n".join(["Rank,Iteration,Step Time (ms)", *lines]))
    visit.go("/upload")
    visit.page.get_by_label("File with a telemetry window").set_input_files(table)
    visit.page.get_by_role("button", name="Diagnose").click()
    visit.page.wait_for_selector(f"main >> text={table.name}", timeout=60_000)
    assert visit.complaints == []


def test_from_an_upload_to_a_promotion(visit: Visit) -> None:
    page = visit.page
    visit.go(f"/diagnoses/{visit.diagnosis}", "svg")
    assert page.inner_text("h1").startswith("FAIL-SLOW: node node-1")
    assert "UTC" in page.inner_text("main dl")
    assert page.get_by_role("link", name="Runbook: cpu contention").count() == 1
    plan = page.locator("section:has(> h2:text-is('Plan'))").inner_text()
    assert "evict other process: " in plan or "Wait: " in plan
    assert "evict other process" in plan
    assert (
        page.get_by_role("link", name="Its incident").get_attribute("href") == f"#/incidents/{visit.incident}"
    )
    page.get_by_role("button", name="The diagnosis is right").click()
    page.wait_for_selector("text=Your feedback is stored (confirmed)")
    visit.go("/training")
    page.get_by_role("button", name="Start training").click()
    page.wait_for_selector("text=Training, queued")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the run").click()
    page.wait_for_selector("text=Training, cancelled")
    visit.go("/models")
    page.get_by_role("button", name="Promote version 2").click()
    page.get_by_role("dialog").get_by_role("button", name="Promote").click()
    page.wait_for_selector("text=Version 2 is the champion now")
    visit.go("/")
    told = page.locator("main table").first.inner_text()
    assert "fail-slow >0.99; cpu_contention" in told
    assert "the job lost " in told
    page.locator("main table").first.get_by_role("link").first.click()
    page.wait_for_selector("text=explained")
    assert "node-1" in page.inner_text("main dl")
    assert visit.complaints == []
    assert {each for each in visit.requests if not each.startswith((f"{visit.url}/", "data:"))} == set()


def test_pictures_for_the_documentation(visit: Visit, request: pytest.FixtureRequest) -> None:
    """`pytest --screenshots FOLDER` writes them."""
    folder = request.config.getoption("--screenshots")
    if folder is None:
        pytest.skip("--screenshots FOLDER writes them")
    image = pytest.importorskip("PIL.Image", reason="Pillow makes the pictures small")
    page, wanted = visit.page, Path(folder)
    wanted.mkdir(parents=True, exist_ok=True)
    for name, part, wait, size in (
        ("page-incidents", "/", "table", (1000, 560)),
        ("page-diagnosis", f"/diagnoses/{visit.diagnosis}", "svg", (900, 1690)),
        ("page-incident", f"/incidents/{visit.incident}", "table", (900, 2060)),
    ):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        visit.go(part, wait)
        drawn = image.open(BytesIO(page.screenshot()))
        drawn.convert("RGB").quantize(96).save(wanted / f"{name}.png", optimize=True)
    page.set_viewport_size({"width": 1200, "height": 900})


def test_a_wrong_diagnosis_is_corrected(visit: Visit) -> None:
    page = visit.page
    visit.go(f"/diagnoses/{visit.diagnosis}", "svg")
    page.get_by_label("Cause", exact=True).select_option("memory_pressure")
    page.get_by_label("Nodes").last.fill("node-1")
    page.get_by_role("button", name="The diagnosis is wrong").click()
    page.wait_for_selector("text=Your feedback is stored (corrected)")
    page.wait_for_selector("main li >> text=corrected, memory pressure")


def test_an_action_is_recorded_on_an_incident_once(visit: Visit) -> None:
    page = visit.page
    visit.go(f"/incidents/{visit.incident}")
    page.wait_for_selector("text=No action is recorded")
    advised = page.get_by_label("Action", exact=True)
    assert advised.input_value() == "evict_other_process"
    page.get_by_label("When it took effect (UTC)").fill("2026-11-21T20:11:00")
    page.get_by_label("What was done").fill("stopped a backup")
    # The answer of the first request is lost; the second one finds the action.
    page.route("**/actions", lambda route: (route.fetch(), route.abort()), times=1)
    known = len(visit.complaints)
    for wait in ("text=No answer came", "text=The action is recorded"):
        page.get_by_role("button", name="Record the action").click()
        page.wait_for_selector(wait)
    del visit.complaints[known:]
    rows = page.locator("section:has(> h2:text-is('Actions taken')) tbody tr")
    assert rows.count() == 1
    told = rows.inner_text()
    for part in ("2026-11-21 20:11:00 UTC", "node-1, ranks 2-3", "per step", "stopped a backup"):
        assert part in told
    assert page.get_by_label("What was done").input_value() == ""


def test_a_note_that_is_edited_after_a_lost_answer_records_nothing_twice(visit: Visit) -> None:
    page, known = visit.page, len(visit.complaints)
    visit.go(f"/incidents/{visit.incident}", "form")
    rows = page.locator("section:has(> h2:text-is('Actions taken')) tbody tr")
    before = rows.count()
    note, button = page.get_by_label("What was done"), page.get_by_role("button", name="Record the action")
    note.fill("restarted the node")
    page.route("**/actions", lambda route: (route.fetch(), route.abort()), times=1)
    button.click()
    page.wait_for_selector("text=No answer came")
    note.fill("restarted the node twice")
    button.click()
    page.wait_for_selector("text=was recorded before, without your last changes")
    assert rows.count() == before + 1
    # It is another action after all, and the list cannot be loaded: no reason to record it again.
    page.route("**/actions?limit=200", lambda route: route.abort(), times=1)
    button.click()
    page.wait_for_selector("text=The list is not up to date")
    assert (note.input_value(), page.locator("main form .problem").count()) == ("", 0)
    del visit.complaints[known:]


def test_a_failed_catalogue_leaves_out_the_form_only_and_is_fetched_again(visit: Visit) -> None:
    page, known = visit.page, len(visit.complaints)
    page.goto(f"{visit.url}/ui")
    page.wait_for_selector("text=Latest diagnoses")
    page.route("**/ui/catalogue", lambda route: route.abort(), times=1)
    visit.go(f"/incidents/{visit.incident}")
    page.wait_for_selector("text=No action can be recorded now")
    assert page.inner_text("main").count("Timeline") == 1
    visit.go(f"/incidents/{visit.incident}", "form")
    del visit.complaints[known:]


def test_the_heat_map_is_read_by_pointer_and_keyboard_and_filtered(visit: Visit) -> None:
    page = visit.page
    visit.go(f"/diagnoses/{visit.diagnosis}", "svg")
    canvas = page.locator("main .heat canvas").first
    box = canvas.bounding_box()
    # Rank 2 of eight, in the middle of the slow steps.
    canvas.hover(position={"x": box["width"] * 0.55, "y": box["height"] * 2.5 / 8})
    told = page.inner_text(".readout")
    assert re.fullmatch(r"Rank 2, node-1, step \d+: [\d.]+ ms later than the middle rank\.", told)
    canvas.press("ArrowDown")
    assert page.inner_text(".readout").startswith("Rank 3, node-1")
    page.get_by_label("Node", exact=True).select_option("node-1")
    assert "2 ranks" in (page.locator("main .heat canvas").first.get_attribute("aria-label") or "")
    box = page.locator("main .heat canvas").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 20)
    page.mouse.up()
    first, last = (int(page.get_by_label(name).input_value()) for name in ("From step", "To step"))
    assert (first, last) == (26, 39)


def test_two_windows_are_compared_with_one_scale(visit: Visit) -> None:
    visit.go(f"/compare?left={visit.diagnosis}&right={visit.diagnosis}", "section + section canvas")
    scales = visit.page.locator("main .legend:has(canvas)").all_inner_texts()
    assert len(scales) == 2
    assert scales[0] == scales[1]


def test_every_action_is_reached_by_keyboard_and_its_focus_shows(visit: Visit) -> None:
    page = visit.page
    visit.go(f"/diagnoses/{visit.diagnosis}", "svg")
    wanted = set(page.evaluate(REACHABLE))
    page.evaluate("document.activeElement.blur()")
    page.evaluate("getSelection().removeAllRanges()")
    reached, hidden = [], []
    for _ in range(len(wanted) + 5):
        page.keyboard.press("Tab")
        at, shows = page.evaluate(FOCUSED)
        if at >= 0:
            reached.append(at)
            hidden += [] if shows else [at]
    assert set(reached) == wanted
    assert hidden == []
    page.focus("#skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_contrast_in_both_themes(visit: Visit, theme: str) -> None:
    visit.page.emulate_media(color_scheme=theme)
    pale: dict[str, list[str]] = {}
    for part in (*PARTS, f"incidents/{visit.incident}", f"diagnoses/{visit.diagnosis}"):
        visit.go(f"/{part}", "svg" if part.startswith("diagnoses") else "h1")
        found = visit.page.evaluate(PALE)
        assert found["n"] > 10
        pale[part] = found["pale"]
    assert pale == {part: [] for part in pale}


def test_nothing_scrolls_sideways_at_360_pixels(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 360, "height": 740})
    widths = {}
    for part in (
        *PARTS,
        f"incidents/{visit.incident}",
        f"diagnoses/{visit.diagnosis}",
        f"compare?left={visit.diagnosis}&right={visit.diagnosis}",
    ):
        visit.go(f"/{part}", "svg" if part.startswith("diagnoses") else "h1")
        widths[part] = visit.page.evaluate("document.documentElement.scrollWidth")
    visit.page.set_viewport_size({"width": 1200, "height": 900})
    assert {part: width for part, width in widths.items() if width > 360} == {}


def test_the_runbook_is_filled_from_a_window_of_the_same_cause(visit: Visit) -> None:
    visit.go("/")
    filled_from = """async () => {
      const { blamingWindow } = await import("/ui/files/pages/incident.js");
      const causes = ["cpu_contention", null, "hang", "hang"];
      const diagnoses = causes.map((cause, at) => ({ cause, diagnosis_id: at }));
      const found = (cause) => blamingWindow({ cause, diagnoses })?.diagnosis_id ?? null;
      return ["hang", "gpu_throttling"].map(found);
    }"""
    assert visit.page.evaluate(filled_from) == [2, None]


#: A runbook in small: numbered steps with code and bullets below them.
STEPS = """1. Read **this**.
   ```bash
   - not an item
   ```
   - Yes: it is
     so.
   - No: it is not.
2. Look.
   - Expect: more.

- Step 1: undo.
  ```bash
  undo
  ```
"""


def test_what_stands_below_a_step_of_a_runbook_stays_there(visit: Visit) -> None:
    visit.go("/")
    drawn = """async text => {
      const { rendered } = await import("/ui/files/markdown.js");
      return rendered(text).innerHTML;
    }"""
    assert visit.page.evaluate(drawn, STEPS) == (
        '<ol start="1"><li>Read <strong>this</strong>.<pre tabindex="0">- not an item</pre>'
        "<ul><li>Yes: it is so.</li><li>No: it is not.</li></ul></li>"
        "<li>Look.<ul><li>Expect: more.</li></ul></li></ol>"
        '<ul><li>Step 1: undo.<pre tabindex="0">undo</pre></li></ul>'
    )


def test_short_names_are_not_broken(visit: Visit, stranger: Any) -> None:
    stranger.set_viewport_size({"width": 1280, "height": 900})
    key = visit.page.evaluate("sessionStorage.getItem('rca-key')")
    headers = {"Authorization": f"Bearer {key}", "Accept": "text/html"}
    report = stranger.request.get(f"{visit.url}/v1/diagnoses/{visit.diagnosis}", headers=headers)
    stranger.set_content(report.text())
    cut = """selector => [...document.querySelectorAll(selector)].filter((each) => {
      const range = document.createRange();
      range.selectNodeContents(each);
      return new Set([...range.getClientRects()].map((box) => Math.round(box.bottom))).size > 1;
    }).map((each) => each.textContent)"""
    assert stranger.locator("td code").count() > 0
    assert stranger.evaluate(cut, "td code") == []
    visit.go("/", "table")
    visit.page.evaluate("""async () => {
      const { h, table } = await import("/ui/files/dom.js");
      const cells = [h("a", {}, "swapping"), "node-001", ...Array(5).fill("many words ".repeat(20))];
      const drawn = table("", cells.map(String), [cells]);
      document.querySelector("main").replaceChildren(h("h1", {}, "Short"), drawn);
    }""")
    assert visit.page.evaluate(cut, "th[scope=row] a, td:nth-child(2)") == []


def test_one_late_rank_of_ten_thousand_is_seen(visit: Visit) -> None:
    visit.page.emulate_media(color_scheme="light")
    found = visit.page.evaluate(MANY)
    assert found["height"] == 480
    assert found["marked"] == [7777 * 480 // 10_000]
    assert found["worst"]["row"] == 7777
    assert found["worst"]["mean"] == pytest.approx(0.55, abs=0.01)


@pytest.mark.parametrize(
    ("status", "body", "advice"),
    [
        (401, {"title": "The request has no valid credential"}, "Sign in with a valid key"),
        (
            403,
            {"title": "The scopes of the caller do not allow this"},
            "Sign in with a key that has this scope",
        ),
        (503, {"title": "The service is at its limit"}, "Try again in 7 s"),
        (None, {}, "Check the network"),
    ],
)
def test_an_error_says_what_to_do(
    visit: Visit, status: int | None, body: dict[str, Any], advice: str
) -> None:
    page, known = visit.page, len(visit.complaints)

    def answer(route: Any) -> None:
        if status is None:
            route.abort()
        else:
            route.fulfill(status=status, json={"detail": "no", **body}, headers={"Retry-After": "7"})

    page.route("**/v1/nodes*", answer)
    visit.go("/nodes", ".problem")
    page.unroute("**/v1/nodes*")
    # Chromium writes refused requests to the console.
    del visit.complaints[known:]
    assert advice in page.inner_text("main .problem")
    assert page.evaluate("document.activeElement.tagName") == "H1"
