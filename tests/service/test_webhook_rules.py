"""Where webhooks may go, how they are signed, and how long is waited."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from receivers import verified

from rca_api.webhooks import signing
from rca_api.webhooks.addresses import Policy, Refused, is_public
from rca_api.webhooks.dispatcher import MAX_PAUSE_SECONDS, Retries

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
BODY = b'{"type":"incident.opened"}'


def test_the_signature_matches_the_specification() -> None:
    # The example of the Standard Webhooks specification's reference libraries.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105  (published)
    found = signing.signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_receiver_accepts_only_signed_messages() -> None:
    sent = signing.headers(SECRET, "a", 1000, BODY)
    assert verified(SECRET, sent, BODY, 1000.0)
    assert verified(
        SECRET, sent | {"webhook-signature": f"v1,AAAA {sent['webhook-signature']}"}, BODY, 1000.0
    )
    assert not verified(SECRET, sent, BODY + b" ", 1000.0)
    assert not verified(SECRET, sent | {"webhook-id": "b"}, BODY, 1000.0)
    assert not verified(SECRET, sent | {"webhook-timestamp": "1001"}, BODY, 1000.0)
    assert not verified(signing.new_secret(), sent, BODY, 1000.0)
    assert not verified(SECRET, sent, BODY, 1000.0 + 301)
    assert not verified(SECRET, {}, BODY, 1000.0)


def test_secrets_are_long_and_unique() -> None:
    made = {signing.new_secret() for _ in range(8)}
    assert len(made) == 8
    assert {len(base64.b64decode(each.removeprefix("whsec_"))) for each in made} == {32}


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",  # noqa: S104  (refused)
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
    ],
)
def test_addresses_that_only_the_service_can_reach_are_not_public(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(Refused) as caught:
        Policy().resolve("https://hooks.example.org/", lambda host, port: ["8.8.8.8", address])
    assert address not in caught.value.message


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.org/",
        "ftp://hooks.example.org/",
        "file:///etc/passwd",
        "https://",
        "https:///path",
        "https://user@hooks.example.org/",
        "https://user:word@hooks.example.org/",
        "https://hooks.example.org:0/",
        "https://hooks.example.org:99999/",
        "https://[::1/",
        "https://hooks.example.org/a b",
        "https://hooks.example.org/\r\nX-Header: 1",
        "https://höoks.example.org/",
        "hooks.example.org",
        "",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(Refused):
        Policy().check(url)


def test_a_list_of_hosts_excludes_all_others() -> None:
    policy = Policy(hosts=("hooks.corp", ".inside.corp"))
    inside = policy.resolve("https://HOOKS.corp:8443/a?b=1", lambda host, port: ["10.0.0.1"])
    assert (inside.addresses, inside.port, inside.request, inside.authority) == (
        ("10.0.0.1",),
        8443,
        "/a?b=1",
        "hooks.corp:8443",
    )
    policy.check("https://a.inside.corp/")
    for other in (
        "https://hooks.example.org/",
        "https://evilhooks.corp/",
        "https://inside.corp.example.org/",
    ):
        with pytest.raises(Refused):
            policy.check(other)


def test_each_attempt_tries_another_address() -> None:
    target = Policy().resolve("https://hooks.example.org", lambda host, port: ["8.8.8.8", "8.8.4.4"])
    assert [target.address(attempt) for attempt in (1, 2, 3)] == ["8.8.8.8", "8.8.4.4", "8.8.8.8"]
    assert target.request == "/"


@given(st.integers(1, 1000), st.floats(0, 1), st.none() | st.floats(0, 1e9))
def test_pauses_grow_and_stay_within_bounds(attempt: int, jitter: float, asked: float | None) -> None:
    retries = Retries(first_pause_seconds=5.0)
    pause = retries.pause(attempt, asked, jitter)
    assert 2.5 <= pause <= MAX_PAUSE_SECONDS
    assert pause >= min(asked or 0.0, MAX_PAUSE_SECONDS)
    assert retries.pause(attempt + 1, None, jitter) >= retries.pause(attempt, None, jitter)
