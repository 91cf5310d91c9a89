"""torch's store, through which the processes of a run find each other."""

import os
import socket
from datetime import timedelta
from ipaddress import ip_address

import torch.distributed as dist

from reread.preprocessing.errors import UserError


def on_one_machine() -> bool:
    """Whether the processes of this run meet at an address that no other machine reaches."""
    address = os.environ.get("MASTER_ADDR", "")
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:  # a name
        return False


def open_store(address: str, port: int, world: int, *, timeout: timedelta, wait: bool = True) -> dist.TCPStore:
    """Open torch's store, listening on `address` only: torch's default is all interfaces, and whoever reaches the store
    can read and write it. `port` 0 means any free port. Raises `UserError` if the port is taken.

    `wait`: until all `world` processes have connected.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address, port))
        except OSError as error:
            raise UserError(f"MASTER_PORT: {address}, port {port}: {error.strerror}; give another port") from None
        listening.listen(socket.SOMAXCONN)
        port = listening.getsockname()[1]
        return dist.TCPStore(
            address,
            port,
            world,
            is_master=True,
            timeout=timeout,
            wait_for_workers=wait,
            master_listen_fd=listening.detach(),
        )
