"""Programs for scripts, forked off a process that has imported fairseq: each starts seconds earlier."""

import os
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from multiprocessing import get_context, set_start_method
from multiprocessing.reduction import DupFd
from pathlib import Path

from support.commands import run_forked, start_fork_server

CLIENT = """#!{python} -IS
import os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    words = [os.getcwd(), os.path.basename(sys.argv[0]), *sys.argv[1:]]
    socket.send_fds(server, [chr(0).join(words).encode()], [0, 1, 2])
    sys.exit(int(server.recv(8) or 1))
"""


@contextmanager
def forked_programs(folder: Path, *names: str):
    """Writes programs to a new folder, to be put on the PATH; they work until the end of the context."""
    folder.mkdir()
    address = str(folder / "socket")
    for name in names:
        (folder / name).write_text(CLIENT.format(python=sys.executable, address=address))
        (folder / name).chmod(0o755)
    start_fork_server()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)


def _serve(server):
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_run, args=(client,), daemon=True).start()


def _run(client):
    """Runs a program; it is killed when its client is."""
    with client:
        message, streams, _, _ = socket.recv_fds(client, 1 << 16, 3)
        folder, *argv = message.decode().split("\0")
        process = get_context("forkserver").Process(target=_Program(folder, argv, streams))
        process.start()
        for stream in streams:
            os.close(stream)
        threading.Thread(target=lambda: client.recv(1) or process.kill(), daemon=True).start()
        process.join()
        with suppress(BrokenPipeError):  # the client was killed
            client.sendall(str(abs(process.exitcode)).encode())


class _Program:
    """A call of a program; pickled, it takes its streams along."""

    def __init__(self, folder, argv, streams):
        self.folder, self.argv, self.streams = folder, argv, streams

    def __getstate__(self):
        return {**vars(self), "streams": [DupFd(stream) for stream in self.streams]}

    def __call__(self):
        os.chdir(self.folder)
        set_start_method("fork", force=True)  # of data loaders; else they would start as this process did
        run_forked(self.argv, [stream.detach() for stream in self.streams], {})
