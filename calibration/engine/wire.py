"""Length-prefixed JSON over a stream socket: 4 bytes of length, then that many bytes of UTF-8.

No pickle: what arrives can be wrong, but it cannot run. JSON carries Python floats exactly.
"""

from __future__ import annotations

import json
import socket
import struct

MAX_MESSAGE_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")


class WireClosed(ConnectionError):
    """The other side has gone, or does not speak this protocol."""


def send(connection: socket.socket, message: dict[str, object]) -> None:
    """Sends one message; raises WireClosed when the other side has gone."""
    content = json.dumps(message, allow_nan=False).encode()
    try:
        connection.sendall(_LENGTH.pack(len(content)) + content)
    except TimeoutError:
        raise
    except OSError as error:
        raise WireClosed(str(error)) from error


def receive(connection: socket.socket) -> dict[str, object]:
    """The next message; raises WireClosed at the end of the stream, TimeoutError as the socket is set."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > MAX_MESSAGE_BYTES:
        raise WireClosed(f"a message of {length:,} bytes")
    try:
        message = json.loads(_exactly(connection, length))
    except ValueError as error:
        raise WireClosed("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise WireClosed("a message that is not an object")
    return message


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = connection.recv(count - len(parts))
        except TimeoutError:
            raise
        except OSError as error:
            raise WireClosed(str(error)) from error
        if not part:
            raise WireClosed("the other side closed the connection")
        parts += part
    return bytes(parts)
