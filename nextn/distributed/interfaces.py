"""Finds the network interface of this machine that has a given address."""

from __future__ import annotations

import socket
import struct
import sys
from array import array
from ipaddress import IPv6Address
from pathlib import Path

SIOCGIFCONF = 0x8912  # Linux: addresses of interfaces, as ifreq
IFREQ = struct.Struct("16s2xH4s16x")  # on 64-bit systems: the name, and a sockaddr_in
MOST = 1024  # addresses
IPV6 = Path("/proc/net/if_inet6")


def interface_of(address: str) -> str | None:
    """Returns the interface's name, for NCCL_SOCKET_IFNAME and similar variables. None if no interface has
    this address, or if the system does not tell."""
    if sys.platform != "linux":
        return None
    try:
        return _of_ipv6(address) if ":" in address else _of_ipv4(address)
    except OSError:
        return None


def _of_ipv4(address: str) -> str | None:
    import fcntl  # not available on Windows

    found = array("B", bytes(MOST * IFREQ.size))
    asked = struct.pack("iP", len(found), found.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        size, _ = struct.unpack("iP", fcntl.ioctl(end, SIOCGIFCONF, asked))
    for name, _, raw in IFREQ.iter_unpack(found[:size]):
        if socket.inet_ntoa(raw) == address:
            # For an interface's second address, a label follows the name after a colon.
            return str(name.partition(b"\0")[0].partition(b":")[0].decode())
    return None


def _of_ipv6(address: str) -> str | None:
    wanted = IPv6Address(address.partition("%")[0])
    for line in IPV6.read_text().splitlines():
        raw, *_, name = line.split()
        if IPv6Address(int(raw, 16)) == wanted:
            return name
    return None
