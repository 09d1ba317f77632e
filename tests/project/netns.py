"""A network of one's own: processes that all listen on their usual ports, and disturb nobody."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def bring_up_loopback() -> None:
    """Set the loopback interface of this network up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(probe, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


@contextmanager
def private_network() -> Iterator[list[str]]:
    """Give the words to put before a command, so that it runs in a network of its own."""
    root = os.geteuid() == 0
    unshare = ["unshare", "--net"] if root else ["unshare", "--user", "--map-root-user", "--net"]
    holder = subprocess.Popen(
        [*unshare, sys.executable, "-m", "tests.project.netns"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "up\n", "no private network could be made"
        enter = ["nsenter", f"--target={holder.pid}", "--net"]
        yield [*enter, "--"] if root else [*enter, "--user", "--preserve-credentials", "--"]
    finally:
        holder.stdin.close()
        holder.wait()


if __name__ == "__main__":
    bring_up_loopback()
    print("up", flush=True)
    sys.stdin.read()
