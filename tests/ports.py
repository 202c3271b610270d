"""Ports for servers in processes of their own, which are given the number before they listen."""

import random
import socket

NOBODY_IS_GIVEN = range(20_000, 32_000)
"""Systems give connections, and listeners that ask for any port, one from 32,768 on (macOS from 49,152 on)."""


def free_port() -> int:
    """Choose a port that nothing uses, and that no other test is given before the server listens there."""
    while True:
        port = random.SystemRandom().choice(NOBODY_IS_GIVEN)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
