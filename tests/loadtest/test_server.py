"""A server of the load test ends with whoever asks it."""

import socket
from multiprocessing.shared_memory import SharedMemory

import torch

from grace_torchrec.loadtest.generator import FAILED, Material
from grace_torchrec.loadtest.server import Server


def test_an_asker_that_is_gone_ends_the_server_without_a_complaint() -> None:
    """Its socket is reset where a note lies unread, as after Ctrl-C."""
    memory = SharedMemory(create=True, size=64)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = Server(None, Material((), (), 0.1, memory.name, 1, 64, 0), (torch.zeros(1),), ours)
    try:
        server._send(0, FAILED, 0, 0)
        theirs.close()
        server.serve()
        server._send(0, FAILED, 0, 0)
    finally:
        server.close()
        ours.close()
        memory.close()
        memory.unlink()
