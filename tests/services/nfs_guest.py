"""A real NFS server and client in one user-mode Linux: the first process of it.

It serves an ext4 on a device that can be made to fail, mounts it, runs a command on it, and does
meanwhile what the command asks for by `nfs_control`: it has no file on NFS open itself, so it does
not hang when NFS does. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.services.nfs_control import CONTROL, EXPORT, NFS, SECOND
from tests.services.uml_guest import OUT, modprobe, mount, power_off, set_up, sh

REPORT = "report.json"
_DEVICE = Path("/dev/mapper/disk")
_OWNER = 1000  # uid and gid whose all files are, on the server
_EXPORT_OPTIONS = (
    f"rw,sync,all_squash,anonuid={_OWNER},anongid={_OWNER},no_subtree_check,fsid=0,insecure"
)
_Q_SETQUOTA = 0x800008 << 8  # of users, the 0 in the low byte
_QIF_BLIMITS = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Quota(ctypes.Structure):
    """struct dqblk of quotactl(2); limits in KiB."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("hard", "soft", "space", "ihard", "isoft")),
        *((name, ctypes.c_uint64) for name in ("inodes", "btime", "itime")),
        ("valid", ctypes.c_uint32),
    ]


class Disk:
    """An ext4 of `size_mib` MiB at EXPORT, on a loop device in memory."""

    def __init__(self, size_mib: int) -> None:
        modprobe("loop", "dm-mod", "dm-flakey", "quota_v2")
        image = Path("/mnt/image")
        image.mkdir()
        mount("tmpfs", image, f"size={size_mib + 16}m")
        with (image / "disk").open("xb") as file:
            file.truncate(size_mib << 20)
        self._loop = sh("losetup", "-f", "--show", str(image / "disk")).strip()
        self._sectors = (size_mib << 20) // 512
        sh("dmsetup", "create", "disk", "--noudevsync", "--table", self._table("linear"))
        sh("dmsetup", "mknodes")
        sh("mkfs.ext4", "-q", "-m", "0", "-O", "quota", str(_DEVICE))
        EXPORT.mkdir()
        os.chown(EXPORT, _OWNER, _OWNER)
        self.mount()
        (EXPORT / "lost+found").rmdir()
        os.chown(EXPORT, _OWNER, _OWNER)

    def mount(self) -> None:
        mount("ext4", EXPORT, "usrquota", source=str(_DEVICE))

    def unmount(self) -> None:
        sh("umount", str(EXPORT))

    def break_writes(self) -> None:
        self._load(self._table("flakey", "0 0 1 1 error_writes"))

    def heal(self) -> None:
        self._load(self._table("linear"))

    def set_quota(self, mib: int) -> None:
        quota = _Quota(hard=mib << 10, soft=mib << 10, valid=_QIF_BLIMITS)
        device = str(_DEVICE).encode()
        if _LIBC.quotactl(_Q_SETQUOTA, device, _OWNER, ctypes.byref(quota)) != 0:
            raise OSError(ctypes.get_errno(), "quotactl")

    def _table(self, target: str, more: str = "0") -> str:
        # flakey: offset, seconds up, seconds down, number of features, features
        return f"0 {self._sectors} {target} {self._loop} {more}"

    def _load(self, table: str) -> None:
        sh("dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", "disk")
        sh("dmsetup", "load", "disk", "--table", table)
        sh("dmsetup", "resume", "--noudevsync", "disk")


class Server:
    """The kernel's NFS server, of version "3" or "4.x"."""

    def __init__(self, version: str) -> None:
        self._version = version
        state = Path("/var/lib/nfs")
        mount("tmpfs", state)
        for name in ("rpc_pipefs", "sm", "sm.bak", "v4recovery", "nfsdcltrack", "nfsdcld"):
            (state / name).mkdir()
        for name in ("etab", "rmtab", "state", "xtab"):
            (state / name).touch()
        modprobe("nfsd", "nfsv3" if version == "3" else "nfsv4")
        mount("rpc_pipefs", state / "rpc_pipefs")
        mount("nfsd", "/proc/fs/nfsd")
        for seconds in ("nfsv4gracetime", "nfsv4leasetime"):
            Path("/proc/fs/nfsd", seconds).write_text("10")
        self.export("127.0.0.1")
        if version == "3":
            Path("/run/rpcbind").mkdir()
            sh("rpcbind", "-w")
        sh("rpc.mountd")
        self.start()
        if version != "3":  # there is nobody who could claim anything yet
            Path("/proc/fs/nfsd/v4_end_grace").write_text("Y")

    def start(self) -> None:
        only = ("-N", "4") if self._version == "3" else ("-N", "3")
        sh("rpc.nfsd", *only, "4")

    def stop(self) -> None:
        sh("rpc.nfsd", "0")

    def export(self, client: str) -> None:
        sh("exportfs", "-o", _EXPORT_OPTIONS, f"{client}:{EXPORT}")


class Guest:
    """What `nfs_control` can ask for, by name."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._disk = Disk(config["size_mib"])
        self._server = Server(config["version"])
        NFS.mkdir()
        self._mount("127.0.0.1", NFS)
        self.requests: dict[str, Callable[..., None]] = {
            "stop_server": self._server.stop,
            "start_server": self._server.start,
            "break_disk": self._disk.break_writes,
            "heal_disk": self._disk.heal,
            "set_quota": self._disk.set_quota,
            "second_client": self._second_client,
            "lose_disk": lambda: self._change_disk(self._disk.unmount),
            "find_disk": lambda: self._change_disk(self._disk.mount),
        }

    def _change_disk(self, change: Callable[[], None]) -> None:
        self._server.stop()
        sh("exportfs", "-f")  # the kernel forgets the file system, or it could not be unmounted
        change()
        self._server.start()

    def _mount(self, host: str, target: Path, *before: str, more: str = "") -> None:
        version = self._config["version"]
        options = f"vers={version},{self._config['options']}{',' if more else ''}{more}"
        path = EXPORT if version == "3" else "/"
        sh(*before, "mount", "-t", "nfs", "-o", options, f"{host}:{path}", str(target))

    def _second_client(self, options: str) -> None:
        """Its own network and host name make the server take it for another machine."""
        if SECOND.exists():
            sh("umount", str(SECOND))
        else:
            self._second_network()
        other_host = ("nsenter", "--net=/run/netns/second", "unshare", "--uts")
        program = 'hostname second; exec "$@"'
        self._mount("10.9.0.1", SECOND, *other_host, "sh", "-c", program, "sh", more=options)

    def _second_network(self) -> None:
        SECOND.mkdir()
        modprobe("veth")
        sh("ip", "netns", "add", "second")
        sh("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", "second")
        sh("ip", "addr", "add", "10.9.0.1/24", "dev", "v0")
        sh("ip", "link", "set", "v0", "up")
        within = ("ip", "netns", "exec", "second")
        sh(*within, "ip", "addr", "add", "10.9.0.2/24", "dev", "v1")
        sh(*within, "ip", "link", "set", "v1", "up")
        self._server.export("10.9.0.0/24")


def answer(connection: socket.socket, guest: Guest) -> None:
    """Do what one request, a JSON list of a name and arguments, asks for; "" or what went wrong."""
    name, *arguments = json.loads(connection.makefile().readline())
    try:
        guest.requests[name](*arguments)
        said = ""
    except (OSError, subprocess.CalledProcessError) as error:
        said = str(error)
    connection.sendall(json.dumps(said).encode() + b"\n")


def serve(guest: Guest, process: subprocess.Popen[bytes]) -> int:
    """Answer requests until `process` ends; its status."""
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(str(CONTROL))
        listener.listen()
        selector.register(listener, selectors.EVENT_READ)
        while (status := process.poll()) is None:
            if selector.select(timeout=0.1):
                with listener.accept()[0] as connection:
                    answer(connection, guest)
        return status


def main() -> None:
    started = time.monotonic()
    path = Path(sys.argv[1])
    config = json.loads(path.read_text())
    set_up(path.parent)
    guest = Guest(config)
    ready = time.monotonic()
    os.environ.update(config["env"])
    with (OUT / "output").open("xb") as sink:
        process = subprocess.Popen(
            config["command"], cwd=config["cwd"], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
        status = serve(guest, process)
    seconds = {
        "boot": float(Path("/proc/uptime").read_text().split()[0]) - (time.monotonic() - started),
        "server": ready - started,
        "command": time.monotonic() - ready,
    }
    (OUT / REPORT).write_text(json.dumps({"status": status, "seconds": seconds}))
    power_off()


if __name__ == "__main__":
    main()
