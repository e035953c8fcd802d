"""The one door to other servers: addresses are resolved once, checked, and then used as they are.

A server that fetches what its users name can be made to fetch what they should not see: its own database, a cloud's
metadata service, a neighbour. So an address is used only if it is public, or in a network that the operator allows.
A name is resolved once and the connection goes to the address that was checked: it cannot turn into another one in
between (rebinding). Redirects are not followed, proxies of the environment not used, time and bytes are bounded.
Addresses that carry an IPv4 address inside (mapped, 6to4, NAT64) are judged by that one; spellings such as
"2130706433", which resolvers take for 127.0.0.1, by what they resolve to. Seconds, bytes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
COMPATIBLE = ipaddress.IPv6Network("::/96")
#: Not public, though Python's `is_global` (3.11 to 3.13) has some of them for it: protocol assignments, relays, local
#: translation, discard, documentation, segment routing, and what IPv6 no longer uses.
NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24", "192.88.99.0/24", "::/96", "64:ff9b:1::/48", "100::/63", "2001::/23", "3fff::/20", "5f00::/16",
        "fec0::/10",
    )
)  # fmt: skip
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_URL = 2_000
MAX_REPLY_BYTES = 1 << 20


class OutboundError(Exception):
    """A request that is not made, or that failed; the message is for the user."""


class OutboundRefused(OutboundError):
    """The address may not be asked."""


@dataclass(frozen=True, slots=True)
class Guard:
    """`allowed`: networks that may be asked although they are not public."""

    allowed: tuple[Network, ...] = ()
    connect_timeout_s: float = 10.0
    total_timeout_s: float = 30.0
    max_reply_bytes: int = MAX_REPLY_BYTES

    @classmethod
    def of(cls, networks: Iterable[str], **limits: Any) -> Guard:
        """ValueError for what is no network (host bits set included)."""
        return cls(tuple(ipaddress.ip_network(network) for network in networks), **limits)


@dataclass(frozen=True, slots=True)
class Target:
    """A checked URL: `addresses` are where its host may be reached, all of them allowed."""

    url: str
    host: str
    port: int
    addresses: tuple[Address, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


def check(url: str, guard: Guard) -> Target:
    """Resolve and judge `url`. Raises OutboundRefused where it may not be asked, OutboundError where it is unknown."""
    if len(url) > MAX_URL or any(character <= " " or character == "\x7f" for character in url):
        raise OutboundRefused("this is not a URL")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise OutboundRefused("this is not a URL") from None
    if parts.scheme not in DEFAULT_PORTS or not host:
        raise OutboundRefused("give a URL that starts with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise OutboundRefused("leave names and passwords out of the URL")
    port = port or DEFAULT_PORTS[parts.scheme]
    return Target(url, host, port, _addresses(host, port, guard))


def _addresses(host: str, port: int, guard: Guard) -> tuple[Address, ...]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise OutboundError(f"{host} is not known here") from None
    addresses = tuple(dict.fromkeys(ipaddress.ip_address(str(info[4][0]).split("%")[0]) for info in found))
    for address in addresses:  # one bad one is enough: a client would try them all
        if not permitted(address, guard):
            raise OutboundRefused(
                f"{host} is at {address}, which is not public and not among the networks that may be asked"
            )
    return addresses


def permitted(address: Address, guard: Guard) -> bool:
    """Is it public, or in an allowed network? An address with another one inside is judged by that."""
    address = _innermost(address)
    if any(address in network for network in guard.allowed if network.version == address.version):
        return True
    if any(address in network for network in NOT_PUBLIC if network.version == address.version):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _innermost(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv6Address):
        if address in NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address in COMPATIBLE and int(address) > 1:  # ::1.2.3.4, but neither :: nor ::1
            return ipaddress.IPv4Address(int(address))
        inside = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inside is not None:
            return inside
    return address


class _Pinned(AbstractResolver):
    """Answers with the addresses that were checked, and knows no other host."""

    def __init__(self, target: Target) -> None:
        self._target = target

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        if host != self._target.host:
            raise OSError(f"{host} was not checked")
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._target.addresses
        ]

    async def close(self) -> None:
        pass


def session(
    target: Target, guard: Guard, *, connections: int = 1, streaming: bool = False
) -> aiohttp.ClientSession:
    """A session that reaches nothing but `target`; `streaming` lifts the limit on the whole, not on the silence."""
    silence_s = guard.total_timeout_s
    timeout = aiohttp.ClientTimeout(
        total=None if streaming else guard.total_timeout_s,
        connect=None if streaming else guard.connect_timeout_s,
        sock_connect=guard.connect_timeout_s,
        sock_read=silence_s,
    )
    connector = aiohttp.TCPConnector(resolver=_Pinned(target), limit=connections, use_dns_cache=False)
    return aiohttp.ClientSession(
        connector=connector, timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
    )


def post_json(url: str, body: Any, guard: Guard, headers: Mapping[str, str] | None = None) -> Reply:
    """POST `body` as JSON and read at most the guard's bytes. A redirect is an answer like any other."""
    data = body if isinstance(body, bytes) else json.dumps(body, allow_nan=False).encode()
    return asyncio.run(
        _request("POST", url, guard, {"Content-Type": "application/json", **(headers or {})}, data)
    )


def get(url: str, guard: Guard, headers: Mapping[str, str] | None = None) -> Reply:
    return asyncio.run(_request("GET", url, guard, headers or {}, None))


async def _request(
    method: str, url: str, guard: Guard, headers: Mapping[str, str], data: bytes | None
) -> Reply:
    target = check(url, guard)
    try:
        async with (
            session(target, guard) as client,
            client.request(method, url, data=data, headers=headers, allow_redirects=False) as answer,
        ):
            body = await answer.content.read(guard.max_reply_bytes + 1)
            while len(body) <= guard.max_reply_bytes and not answer.content.at_eof():
                body += await answer.content.read(guard.max_reply_bytes + 1 - len(body))
            if len(body) > guard.max_reply_bytes:
                raise OutboundError(f"{target.host} answers with more than {guard.max_reply_bytes:,} bytes")
            return Reply(answer.status, dict(answer.headers), body)
    except TimeoutError:
        raise OutboundError(f"{target.host} did not answer within {guard.total_timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise OutboundError(f"{target.host}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection"
    return "the connection broke"
