"""What callers ask for in headers: media types, and preferences as RFC 7240 writes them."""

from __future__ import annotations

import time

from starlette.requests import Request

from rca_api.shell.requests.negotiation import Preferences
from tests.for_each import for_each

LATER, NOW = Preferences(respond_async=True), Preferences()


def preferences(*headers: str) -> Preferences:
    raw = [(b"prefer", header.encode("latin-1")) for header in headers]
    return Preferences.of(Request({"type": "http", "headers": raw}))


@for_each(
    ("header", "expected"),
    [
        ("respond-async", LATER),
        (" Respond-Async ", LATER),
        # An empty value means no value (RFC 7240, 2).
        ('respond-async=""', LATER),
        ("respond-async=", LATER),
        ("respond-async; foo=bar", LATER),
        ("respond-async ;foo", LATER),
        ("respond-async;;", LATER),
        # The preference has no values, so these are not it.
        ("respond-async=false", NOW),
        ("respond-async=true", NOW),
        ('respond-async="no"', NOW),
        ("respond-async = 0", NOW),
        ("respond-asynchronously", NOW),
        ("x-respond-async", NOW),
        # Within a quoted value nothing is a preference.
        ('foo="a, respond-async"', NOW),
        (r'foo="a\", respond-async, b"', NOW),
        ('foo="bar", respond-async', LATER),
        ("foo; respond-async", NOW),
        ('foo; bar="x, respond-async"', NOW),
        ("return=minimal, handling=lenient, respond-async", LATER),
        ("wait=5", Preferences(wait_seconds=5)),
        ("WAIT = 5", Preferences(wait_seconds=5)),
        ('wait="5"', Preferences(wait_seconds=5)),
        ("wait=5; of=work", Preferences(wait_seconds=5)),
        ("respond-async, wait=7", Preferences(True, 7)),
        ("wait=7,respond-async", Preferences(True, 7)),
        ("respond-async, wait=0", Preferences(True, 0)),
        # What cannot be meant is ignored.
        ("wait=0", NOW),
        ("wait", NOW),
        ("wait=soon", NOW),
        ("wait=-1", NOW),
        ("wait=1.5", NOW),
        ("wait=1e3", NOW),
        ("wait=9999999", NOW),
        ("wait=\xb2", NOW),
        ("respond-async, wait=x", LATER),
        ("", NOW),
        (",,;=,", NOW),
        ("=respond-async", NOW),
        ('"respond-async"', NOW),
        ('foo="never ends, respond-async', NOW),
        ("respond-async wait=5", NOW),
    ],
)
def test_preferences_are_read_as_the_rfc_writes_them(header: str, expected: Preferences) -> None:
    assert preferences(header) == expected


def test_several_headers_are_one_list_in_which_the_first_mention_counts() -> None:
    assert preferences("foo", "wait=5", "respond-async") == Preferences(True, 5)
    assert preferences("wait=5, wait=9", "wait=1") == Preferences(wait_seconds=5)
    assert preferences("respond-async=false", "respond-async") == NOW
    assert preferences() == NOW


@for_each("part", ['"', '\\"', '"\\', ",", ";", "=", "a=", "  ", 'a="', "a;"], ids=ascii)
def test_a_header_of_any_form_is_read_in_one_pass(part: str) -> None:
    began = time.process_time()
    preferences(part * (65_536 // len(part)))
    assert time.process_time() - began < 1.0
