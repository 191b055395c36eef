"""Messages between a process and its worker: a header of JSON and a payload of bytes over a stream socket."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

_SIZES = struct.Struct("<QQ")


class ClosedError(Exception):
    """The other side closed the connection."""


def send(connection: socket.socket, header: Mapping[str, Any], payload: bytes = b"") -> None:
    """Send one message. Raises ClosedError; never a signal, whatever the process does with SIGPIPE."""
    text = json.dumps(header).encode()
    try:
        connection.sendall(_SIZES.pack(len(text), len(payload)) + text, socket.MSG_NOSIGNAL)
        connection.sendall(payload, socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ClosedError from error


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Receive one message. Raises ClosedError; TimeoutError when the socket has a time limit."""
    header_bytes, payload_bytes = _SIZES.unpack(_exactly(connection, _SIZES.size))
    header: dict[str, Any] = json.loads(_exactly(connection, header_bytes))
    return header, _exactly(connection, payload_bytes)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            part = connection.recv(min(count - len(data), 1 << 20))
        except ConnectionResetError as error:
            raise ClosedError from error
        if not part:
            raise ClosedError
        data += part
    return bytes(data)
