"""Sign-in of people at Canaille, an OpenID provider that others wrote, in Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from oidc_provider import CLIENT
from served_ui import served

pytestmark = pytest.mark.system

#: `.ci/run` installs it there: its packages are not those of the lock file.
CANAILLE = Path(".cache/canaille")
PASSWORD = "correct horse battery"  # noqa: S105  (made up)
#: People and their groups at the provider.
PEOPLE = {"ada": ["rca:read", "rca:diagnose", "staff"], "eve": ["staff"], "ted": ["rca:train"]}


@contextmanager
def provider() -> Iterator[tuple[str, Any]]:
    """Gives the issuer, and a function that adds the people and the client of an address."""
    command = [str(CANAILLE / "bin" / "python"), str(Path(__file__).with_name("canaille_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines, given = process.stdout, process.stdin

        def add(url: str) -> None:
            people = {name: (PASSWORD, groups) for name, groups in PEOPLE.items()}
            given.write(
                json.dumps({"client_id": CLIENT, "redirect_uri": f"{url}/ui", "people": people}) + "\n"
            )
            given.flush()
            assert lines.readline() == "\n"

        yield lines.readline().strip(), add
        given.close()


@dataclass
class Browser:
    """A browser in which each visitor has a profile of its own."""

    chromium: Any
    url: str
    issuer: str

    def visit(self) -> Any:
        page = self.chromium.new_context(locale="en").new_page()
        page.set_default_timeout(15_000)
        page.goto(f"{self.url}/ui#/nodes")
        page.get_by_role("button", name="Sign in with your account").click()
        return page

    def ask(self, name: str, answer: str) -> Any:
        """Give name and password at the provider, and answer whether the page may have the groups."""
        page = self.visit()
        page.get_by_role("textbox", name="Login").fill(name)
        page.get_by_role("button", name="Continue").click()
        page.locator("input[type=password]").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        button = page.get_by_role("button", name=answer)
        # Canaille's memory takes the consent of one person for that of all.
        button.or_(page.get_by_role("button", name="Sign out")).wait_for()
        if button.is_visible():
            button.click()
        page.wait_for_url(f"{self.url}/ui**")
        return page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    if not (CANAILLE / "bin" / "canaille").exists():
        pytest.skip(f"Canaille is not installed in {CANAILLE}; .ci/run has the commands")
    with provider() as (issuer, add):
        settings = {
            "oidc_issuer": issuer,
            "oidc_client_id": CLIENT,
            "oidc_audience": CLIENT,
            "oidc_client_scope": "openid profile email groups",
            "oidc_scope_claim": "groups",
        }
        with (
            served(tmp_path_factory.mktemp("service"), **settings) as (url, _),
            playwright.sync_playwright() as started,
        ):
            add(url)
            held = started.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            yield Browser(held, url, issuer)
            held.close()


def status(page: Any, path: str, method: str = "GET") -> int:
    """Status of a request with the token that the page keeps."""
    ask = """([method, path]) => fetch(path, {
      method, headers: { Authorization: `Bearer ${sessionStorage.getItem("rca-key")}` },
    }).then((answer) => answer.status)"""
    found: int = page.evaluate(ask, [method, path])
    return found


def test_a_person_who_does_not_consent_is_not_signed_in(browser: Browser) -> None:
    page = browser.ask("eve", "Deny")
    page.wait_for_selector("text=The issuer refused the sign-in")
    page.get_by_role("button", name="Sign in with your account").wait_for()
    assert page.evaluate("sessionStorage.length") == 0


def test_groups_at_the_provider_are_the_scopes_until_the_person_signs_out(browser: Browser) -> None:
    page = browser.ask("ada", "Accept")
    page.wait_for_selector("text=No diagnosis has a verdict about a node yet")
    assert page.url == f"{browser.url}/ui#/nodes"
    assert (status(page, "/v1/nodes"), status(page, "/v1/plans/corrections")) == (200, 200)
    assert status(page, "/v1/training-runs/0/cancel", "POST") == 403
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector("text=Sign in with your account")
    assert page.evaluate("sessionStorage.length") == 0
    page.reload()
    page.wait_for_selector("text=Sign in with your account")


@pytest.mark.parametrize("name", ["eve", "ted"])
def test_a_person_without_the_group_reads_which_one_is_missing(browser: Browser, name: str) -> None:
    page = browser.ask(name, "Accept")
    page.wait_for_selector("text=Ask an administrator for its scope at the issuer")
    assert "this needs the scope 'read'" in page.inner_text("main")
