"""The guarded client: which addresses may be asked, that the checked one is used, and what is bounded."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from calibration.sources import outbound
from calibration.sources.outbound import Guard, OutboundError, OutboundRefused, check, get, post_json

LOOPBACK = Guard.of(["127.0.0.0/8"], total_timeout_s=60.0)


class Server(http.server.BaseHTTPRequestHandler):
    seen: list[tuple[str, bytes]]

    def do_GET(self) -> None:
        self.seen.append((self.path, b""))
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/secret")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * (3_000_000 if self.path == "/large" else 5))

    def do_POST(self) -> None:
        self.seen.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    seen: list[tuple[str, bytes]] = []
    handler = type("Handler", (Server,), {"seen": seen})
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}", seen
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::]",
        "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "10.0.0.1", "172.16.0.1",
        "192.168.1.1", "169.254.169.254", "[fe80::1]", "[fd00::1]", "100.64.0.1", "224.0.0.1", "255.255.255.255",
        "[::ffff:169.254.169.254]", "192.0.0.192", "192.88.99.1", "[::127.0.0.1]", "[::10.0.0.1]", "[fec0::1]",
        "[3fff::1]", "[5f00::1]", "[64:ff9b:1::1]", "[100:0:0:1::1]", "[::]", "240.0.0.1", "[2001:2::1]",
    ],
)  # fmt: skip
def test_what_is_not_public_is_refused_however_it_is_written(host):
    with pytest.raises((OutboundRefused, OutboundError)) as refused:
        check(f"http://{host}/", Guard())
    assert "not public" in str(refused.value) or "not known" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/", "file:///etc/passwd", "//example.org", "example.org", "http://", "http:///x", "",
        "http://user@93.184.216.34/", "http://a:b@93.184.216.34/", "http://93.184.216.34:99999/",
        "http://93.184.216.34/a b", "http://93.184.216.34/\n", "http://[::1", "http://" + "x" * 3_000,
    ],
)  # fmt: skip
def test_what_is_no_plain_web_address_is_refused(url):
    with pytest.raises(OutboundRefused):
        check(url, Guard.of(["0.0.0.0/0", "::/0"]))


def test_public_addresses_and_allowed_networks_may_be_asked():
    assert str(check("https://93.184.216.34/x", Guard()).addresses[0]) == "93.184.216.34"
    assert check("https://[2606:4700::1111]/", Guard()).port == 443
    inside = Guard.of(["10.1.0.0/16"])
    assert check("http://10.1.2.3:8000/v1", inside).port == 8000
    assert check("http://[::ffff:10.1.2.3]/", inside)
    with pytest.raises(OutboundRefused):
        check("http://10.2.2.3/", inside)
    with pytest.raises(ValueError, match="host bits"):
        Guard.of(["10.1.2.3/16"])


def test_a_name_with_one_bad_address_is_refused(monkeypatch):
    def two(host, port, **_):
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(outbound.socket, "getaddrinfo", two)
    with pytest.raises(OutboundRefused, match=r"127\.0\.0\.1"):
        check("http://mixed.example/", Guard())


def test_a_name_is_resolved_once_and_the_checked_address_is_used(server, monkeypatch):
    """A name that changes its mind after the check (rebinding) is not asked again."""
    url, seen = server
    port = int(url.rsplit(":", 1)[1])
    asked = []

    def changing(host, asked_port, **_):
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "10.9.9.9"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, asked_port))]

    monkeypatch.setattr(outbound.socket, "getaddrinfo", changing)
    assert get(f"http://rebinding.example:{port}/here", LOOPBACK).status == 200
    assert asked == ["rebinding.example"]
    assert seen == [("/here", b"")]


def test_a_redirect_is_an_answer_and_not_followed(server):
    url, seen = server
    reply = get(f"{url}/redirect", LOOPBACK)
    assert (reply.status, reply.headers["Location"]) == (302, "/secret")
    assert [path for path, _ in seen] == ["/redirect"]


def test_proxies_of_the_environment_are_not_used(server, monkeypatch):
    url, seen = server
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert get(f"{url}/x", LOOPBACK).body == b"xxxxx"
    assert len(seen) == 1


def test_bytes_are_bounded(server):
    url, _ = server
    with pytest.raises(OutboundError, match="more than 1,048,576 bytes"):
        get(f"{url}/large", LOOPBACK)


def test_json_is_posted_as_given(server):
    url, seen = server
    assert post_json(f"{url}/hook", {"a": 1}, LOOPBACK).status == 204
    assert post_json(f"{url}/hook", b'{"signed":true}', LOOPBACK).status == 204
    assert [body for _, body in seen] == [b'{"a": 1}', b'{"signed":true}']
    with pytest.raises(ValueError, match="JSON"):
        post_json(f"{url}/hook", {"a": float("nan")}, LOOPBACK)


def test_silence_ends(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(OutboundError, match="did not answer"):
            get(f"http://127.0.0.1:{port}/", Guard.of(["127.0.0.0/8"], total_timeout_s=0.3))


def test_nobody_there_is_said():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(OutboundError, match="no connection"):
        get(f"http://127.0.0.1:{port}/", LOOPBACK)
