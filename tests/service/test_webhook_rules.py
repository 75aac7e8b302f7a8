"""Where webhooks may go, how they are signed, and how long is waited."""

from __future__ import annotations

import base64
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from receivers import verified

from rca_api.webhooks import delivery
from rca_api.webhooks.addresses import Policy, Refused, is_public
from rca_api.webhooks.dispatcher import Retries
from rca_api.webhooks.outbox import MAX_PAUSE
from tests.for_each import for_each

pytestmark = pytest.mark.smoke

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
BODY = b'{"type":"incident.opened"}'


def test_the_signature_matches_the_specification() -> None:
    # The example of the Standard Webhooks specification's reference libraries.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105  (published)
    found = delivery.signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_receiver_accepts_only_signed_messages() -> None:
    sent = delivery.headers(SECRET, "a", 1000, BODY)
    assert verified(SECRET, sent, BODY, 1000.0)
    assert verified(
        SECRET, sent | {"webhook-signature": f"v1,AAAA {sent['webhook-signature']}"}, BODY, 1000.0
    )
    assert not verified(SECRET, sent, BODY + b" ", 1000.0)
    assert not verified(SECRET, sent | {"webhook-id": "b"}, BODY, 1000.0)
    assert not verified(SECRET, sent | {"webhook-timestamp": "1001"}, BODY, 1000.0)
    assert not verified(delivery.new_secret(), sent, BODY, 1000.0)
    assert not verified(SECRET, sent, BODY, 1000.0 + 301)
    assert not verified(SECRET, {}, BODY, 1000.0)


def test_secrets_are_long_and_unique() -> None:
    made = {delivery.new_secret() for _ in range(8)}
    assert len(made) == 8
    assert {len(base64.b64decode(each.removeprefix("whsec_"))) for each in made} == {32}


@for_each(
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
        "::ffff:0:0",
        # IPv4-compatible, and IPv4-translated
        "::127.0.0.1",
        "::8.8.8.8",
        "::ffff:0:127.0.0.1",
        # NAT64, well-known and local
        "64:ff9b::7f00:1",
        "64:ff9b::a00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::",
        "64:ff9b:1:ffff:ffff:ffff:7f00:1",
        "64:ff9b:1::808:808",
        # 6to4 and Teredo
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2002:a9fe:a9fe::",
        "2001:0:0808:0808:0:0:f5ff:fffe",
        "2001:0:7f00:1::",
        # site-local, link-local, unique local, multicast
        "fec0::1",
        "feff::1",
        "fe80::1",
        "fe80::1%1",
        "2606:4700:4700::1111%eth0",
        "fd00:ec2::254",
        "ff05::1",
        "239.1.1.1",
        # documentation, benchmarks, discard, segment routing, not assigned
        "192.0.2.1",
        "198.51.100.1",
        "203.0.113.1",
        "2001:db8::1",
        "3fff::1",
        "198.18.0.1",
        "2001:2::1",
        "100::1",
        "5f00::1",
        "4000::1",
        "240.0.0.1",
        "192.0.0.8",
        "192.88.99.1",
        "100.127.255.255",
        "192.88.99.2",
        # the platform of a virtual machine on Azure; metadata of other clouds
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        # ISATAP in a public prefix, also below 6to4
        "2606:4700:4700::5efe:7f00:1",
        "2606:4700:4700::200:5efe:10.0.0.1",
        "2606:4700:4700::100:5efe:10.0.0.1",
        "2606:4700:4700::300:5efe:169.254.169.254",
        "2002:808:808::5efe:a00:1",
        "2002:808:808::200:5efe:a9fe:a9fe",
        # the first prefix of Teredo, and the former 6bone
        "3ffe:831f:808:808::f5ff:fffe",
        "3ffe::1",
    ],
)
def test_addresses_that_only_the_service_can_reach_are_not_public(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(Refused) as caught:
        Policy().resolve("https://hooks.example.org/", lambda host, port: ["8.8.8.8", address])
    assert address not in caught.value.message


@for_each(
    "address",
    [
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.0",
        "172.32.0.1",
        "2606:4700:4700::1111",
        "2a00:1450:4001::1",
        "64:ff9b::808:808",
        "::ffff:8.8.8.8",
        "2002:808:808::1",
        "2606:4700:4700::200:5efe:808:808",
        "2606:4700:4700::5eff:7f00:1",
    ],
)
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


@for_each(
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
        "https://[v1.x]/",
        "https://[v7.example.org]/",
        "https://[2606:4700:4700::1111]x/",
        "https://[2606:4700:4700::1111].example.org:443/",
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


PRIVATE_LITERALS = [
    "127.0.0.1",
    "127.0.0.1.",
    "10.0.0.1",
    "169.254.169.254",
    "0.0.0.0",  # noqa: S104  (refused)
    "100.64.0.1",
    "192.0.2.7",
    "224.0.0.1",
    "[::1]",
    "[::]",
    "[::127.0.0.1]",
    "[::ffff:10.0.0.1]",
    "[64:ff9b:1::1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[fe80::1]",
    "[fec0::1]",
    "[ff02::1]",
    "localhost",
    "LOCALHOST.",
    "a.localhost",
]


@for_each("host", PRIVATE_LITERALS)
def test_a_private_address_is_refused_before_anything_is_sent(host: str) -> None:
    with pytest.raises(Refused) as caught:
        Policy().check(f"https://{host}:8443/hook")
    assert "RCA_WEBHOOK_PRIVATE" in (caught.value.hint or "")
    Policy(private=True).check(f"https://{host}/hook")
    listed = host.strip("[]").rstrip(".").lower()
    Policy(hosts=(listed,)).check(f"https://{host}/hook")
    with pytest.raises(Refused, match="RCA_WEBHOOK_HOSTS"):
        Policy(hosts=("hooks.corp",), private=True).check(f"https://{host}/hook")


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "[2606:4700:4700::1111]", "hooks.example.org.", "xn--hks-sna.example"]
)
def test_public_addresses_and_names_are_accepted(host: str) -> None:
    Policy().check(f"https://{host}/hook")


@for_each(
    "host",
    [
        "2130706433",
        "2130706433.",
        "0x7f000001",
        "0x7f.1",
        "0X7F.0.0.1",
        "017700000001",
        "0177.0.0.1",
        "127.1",
        "127.0.1",
        "127.0.0.01",
        "127.0.0.1.1",
        "1.2.3.0x4",
        "256.256.256.256",
        "4294967297",
        "8.0x8.8",
        "hooks.example.1",
        "%31%32%37.0.0.1",
        "127.0.0.%31",
        "127.0.0.1%00.example.org",
        "good.example\\.127.0.0.1.nip.example",
        "[fe80::1%25eth0]",
        "[fe80::1%eth0]",
        "[2606:4700:4700::1111%25eth0]",
        "[::1%00]",
        "a,b.example",
        "..",
    ],
)
def test_a_host_that_resolvers_may_read_as_another_address_is_refused(host: str) -> None:
    for policy in (Policy(), Policy(private=True)):
        with pytest.raises(Refused):
            policy.check(f"https://{host}/hook")


@for_each(
    "url",
    [
        "https://hooks.example.org@127.0.0.1/",
        "https://hooks.example.org:x@127.0.0.1/",
        "https://@127.0.0.1/",
        "https://hooks.example.org\\@127.0.0.1/",
        "https://127.0.0.1#@hooks.example.org/",
        "https://127.0.0.1?@hooks.example.org/",
        "https://①②⑦.0.0.1/",
        "https://127。0。0。1/",
    ],
)
def test_no_spelling_of_a_url_hides_its_host(url: str) -> None:
    with pytest.raises(Refused):
        Policy().check(url)


@given(st.ip_addresses(v=4))
def test_every_private_ipv4_address_is_private_inside_ipv6(address: IPv4Address) -> None:
    number = int(address)
    relayed = f"2002:{number >> 16:x}:{number & 0xFFFF:x}"
    inside = [
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        f"{relayed}::1",
        f"{relayed}::5efe:8.8.8.8",
        f"2606:4700::200:5efe:{address}",
        f"2002:808:808::5efe:{address}",
    ]
    assert {is_public(each) for each in inside} == {is_public(str(address))}
    assert not is_public(f"::{address}")
    assert not is_public(f"64:ff9b:1::{address}")


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
    assert [target.url(attempt) for attempt in (1, 2, 3)] == [
        "https://8.8.8.8:443/",
        "https://8.8.4.4:443/",
        "https://8.8.8.8:443/",
    ]


@given(st.integers(1, 1000), st.floats(0, 1), st.none() | st.floats(0, 1e9))
def test_pauses_grow_and_stay_within_bounds(attempt: int, jitter: float, asked: float | None) -> None:
    retries = Retries(first_pause_seconds=5.0)
    pause = retries.pause(attempt, asked, jitter)
    assert 2.5 <= pause <= MAX_PAUSE.total_seconds()
    assert pause >= min(asked or 0.0, MAX_PAUSE.total_seconds())
    assert retries.pause(attempt + 1, None, jitter) >= retries.pause(attempt, None, jitter)
