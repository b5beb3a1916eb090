"""Where a callback may go: URLs and addresses."""

import pytest

from timer_service.targets import AddressRules, Target, read_allowed, read_target

DENIED = [
    *["0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254"],
    *["172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1"],
    *["198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255"],
    *["100.100.100.200", "168.63.129.16", "192.0.0.192"],
    *["::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "::ffff:0:10.0.0.1"],
    *["64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8", "100::1", "2001:0:808:808::1"],
    *[
        "2001:db8::1",
        "2002:a9fe:a9fe::1",
        "2002:808:808::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
    ],
    *["fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "localhost", "", "127.1"],
]
PUBLIC = [
    *["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1"],
    *["223.255.255.255", "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"],
]


@pytest.mark.parametrize("address", DENIED)
def test_an_address_that_is_not_public_is_denied(address: str) -> None:
    assert AddressRules().denial(address, 443) is not None


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_not(address: str) -> None:
    assert AddressRules().denial(address, 443) is None


@pytest.mark.parametrize(
    ("allow", "address", "port", "is_open"),
    [
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", 80, True),
        ("10.0.0.0/8", "2002:a01:203::1", 80, False),
        ("10.0.0.0/8, 2002::/16", "2002:a01:203::1", 80, True),
        ("2002::/16", "2002:a01:203::1", 80, False),
        ("10.0.0.0/8", "192.168.0.1", 80, False),
        ("127.0.0.1", "127.0.0.1", 80, True),
        ("127.0.0.1:8000", "127.0.0.1", 8000, True),
        ("127.0.0.1:8000", "127.0.0.1", 8001, False),
        ("[::1]:8000", "::1", 8000, True),
        ("::1", "::1", 8000, True),
        ("fd00::/8", "fd12::1", 443, True),
        ("0.0.0.0/0", "169.254.169.254", 80, False),
        ("169.254.0.0/16", "169.254.169.254", 80, False),
        ("169.254.169.254", "169.254.169.254", 80, True),
        ("169.254.169.254/32", "169.254.169.254", 80, True),
        ("::/0", "fe80::1", 80, False),
        ("fc00::/7", "fd00:ec2::254", 80, False),
    ],
)
def test_the_operator_opens_ranges_but_metadata_only_by_its_own_address(
    allow: str, address: str, port: int, is_open: bool
) -> None:
    rules = AddressRules(read_allowed(allow))

    assert (rules.denial(address, port) is None) is is_open


@pytest.mark.parametrize(
    ("allow", "is_open"),
    [("127.0.0.0/8", False), ("127.0.0.1", False), ("127.0.0.1:8081", True), ("", False)],
)
def test_where_the_service_listens_is_opened_only_with_its_port(allow: str, is_open: bool) -> None:
    rules = AddressRules(read_allowed(allow), is_ours=lambda _, port: port == 8081)

    assert (rules.denial("127.0.0.1", 8081) is None) is is_open
    assert rules.denial("8.8.8.8", 8081) is not None


@pytest.mark.parametrize(
    "text", ["10.0.0.1/8", "10.0.0.0/33", "example.com", "127.0.0.1:0", "127.0.0.1:x", "1:2"]
)
def test_an_entry_that_is_not_a_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_allowed(text)


@pytest.mark.parametrize(
    ("text", "url", "origin"),
    [
        ("https://example.com", "https://example.com/", "https://example.com:443"),
        ("HTTP://Example.COM:80/a?b=c", "http://example.com/a?b=c", "http://example.com:80"),
        ("https://example.com:8443/x", "https://example.com:8443/x", "https://example.com:8443"),
        ("https://bücher.example/ä?q=ü", "https://xn--bcher-kva.example/%C3%A4?q=%C3%BC", None),
        ("https://faß.de/", "https://xn--fa-hia.de/", None),
        ("https://[2606:4700:0::1111]/", "https://[2606:4700::1111]/", "https://[2606:4700::1111]:443"),
        ("http://my_service:8000/", "http://my_service:8000/", None),
        ("https://example.com/a%2Fb%20c", "https://example.com/a%2Fb%20c", None),
    ],
)
def test_a_url_is_brought_into_one_form(text: str, url: str, origin: str | None) -> None:
    target = read_target(text)

    assert target.url == url
    assert origin is None or target.origin == origin
    assert read_target(target.url) == target


def test_a_target_knows_its_parts() -> None:
    assert read_target("http://10.0.0.1:81/x") == Target(
        "http://10.0.0.1:81/x", "http", "10.0.0.1", 81, address="10.0.0.1"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ftp://example.com/", "must begin with"),
        ("https:example.com", "must begin with"),
        ("//example.com/", "must begin with"),
        ("example.com", "must begin with"),
        ("https:///path", "an invalid host"),
        ("https://example.com:0/", "an invalid host"),
        ("https://example.com:99999/", "an invalid host"),
        ("https://example.com:/", "an invalid host"),
        ("https://user:password@example.com/", "user name or password"),
        ("https://user@example.com/", "user name or password"),
        ("https://example.com/#part", "fragment"),
        ("https://example.com/#", "fragment"),
        ("https://exa mple.com/", "space"),
        ("https://example.com\\@evil.com/", "backslash"),
        ("https://example.com/\r\nX: y", "control"),
        ("https://" + "a" * 2048, "longer than"),
        ("https://example.com/" + "ä" * 1000, "longer than"),
        ("https://2130706433/", "four decimal numbers"),
        ("https://127.1/", "four decimal numbers"),
        ("https://0x7f.0.0.1/", "four decimal numbers"),
        ("https://0177.0.0.1/", "four decimal numbers"),
        ("https://①②⑦.0.0.1.example.com:x/", "an invalid host"),
        ("https://[::1%25lo]/", "an invalid host"),
        ("https://[::g]/", "an invalid host"),
        ("https://ex%61mple.com/", "an invalid host"),
        ("https://[v1.x]/", "an invalid host"),
        ("https://exa_mple..com/", "host name"),
        ("https://-bad-.com/", "host name"),
    ],
)
def test_a_url_that_breaks_a_rule_is_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_target(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1/",
        "http://①②⑦.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:7f00:1]/",
        "http://127.0.0.1./",
    ],
)
def test_an_address_in_a_url_is_judged_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="names an address that callbacks may not go to"):
        read_target(text, AddressRules())
