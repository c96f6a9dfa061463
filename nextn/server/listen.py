"""Listening sockets, and how many connections a process may have."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket

from nextn.server.process.supervisor import StartupError


def raise_file_limit() -> None:
    """Raises the limit of open files. Each connection is one, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # macOS refuses an infinite limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """A listening socket. option: the option that sets the port, for errors. Raises StartupError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
            undo.pop_all()
    except (OSError, UnicodeError) as e:
        place, fix = f"--host {host}", "it must be an address of this machine; 0.0.0.0 stands for all of them"
        if isinstance(e, OSError) and e.errno in (errno.EADDRINUSE, errno.EACCES):
            place, fix = f"{host}:{port}", f"choose another {option}"
        raise StartupError(f"cannot listen on {place}: {getattr(e, 'strerror', e)}; {fix}") from e
    return listener
