"""A throw-away one-node Ceph with its RADOS Gateway: a real S3 server, up in seconds, as any user.

Its objects lie in the memory of the OSD and are gone with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slurm.devcluster.plan import free_ports
from tests.services.ceph_conf import Ports, ceph_conf, mon_address
from tests.services.certificates import make_certificates
from tests.services.processes import Daemon, answers, find_tools, tool
from tests.services.s3 import S3Server

TOOLS = {
    "ceph": "ceph-common",
    "ceph-mon": "ceph-mon",
    "ceph-osd": "ceph-osd",
    "monmaptool": "ceph-common",
    "radosgw": "radosgw",
    "radosgw-admin": "radosgw",
    "openssl": "openssl",
}
_USER = "hpckit"
_SECRET = "hpckit-secret"


@dataclass
class _Cluster:
    """The programs and the files of one cluster."""

    tools: dict[str, str]
    directory: Path
    ports: Ports
    daemons: ExitStack

    def command(self, name: str, *arguments: str) -> list[str]:
        return [self.tools[name], "-c", str(self.directory / "ceph.conf"), *arguments]

    def run(self, name: str, *arguments: str) -> str:
        return tool(self.command(name, *arguments))

    def start(self, name: str, *arguments: str) -> Daemon:
        log = self.directory / f"{name}.out"
        command = self.command(name, *arguments, "-f")
        return self.daemons.enter_context(Daemon.start(name, command, log))

    def admin(self, *arguments: str) -> str:
        return self.run("radosgw-admin", "-n", "client.rgw", *arguments)


@dataclass(kw_only=True)
class CephServer(S3Server):
    """A running gateway. `http` and `https` lead to the same objects."""

    cluster: _Cluster = field(repr=False)
    _gateway: Daemon = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the gateway; it comes back on its old ports, with the objects it had.

        Raises:
            ServiceError: it did not start.
        """
        self._gateway = self.cluster.start("radosgw", "-n", "client.rgw")
        self._gateway.wait_until(lambda: answers(self.cluster.ports.http))

    def stop(self) -> None:
        """Kill the gateway: connections break, new ones are refused."""
        self._gateway.kill()

    def pause(self) -> None:
        """Make the gateway accept connections and answer nothing."""
        self._gateway.pause()

    def resume(self) -> None:
        self._gateway.resume()

    def set_quota(self, size: int | None, *, bucket: str | None = None) -> None:
        """Let the user, or only `bucket`, hold at most `size` bytes; None for no limit.

        At once: what goes beyond is answered 403 QuotaExceeded from the next request on.
        """
        scope = ["--uid", _USER, "--quota-scope", "user" if bucket is None else "bucket"]
        scope += [] if bucket is None else ["--bucket", bucket]
        if size is None:
            self.cluster.admin("quota", "disable", *scope)
        else:
            self.cluster.admin("quota", "set", *scope, "--max-size", str(size))
            self.cluster.admin("quota", "enable", *scope)


@contextmanager
def ceph(directory: Path, *, tls: bool = True, size_gib: int = 8) -> Iterator[CephServer]:
    """A new Ceph whose files lie in `directory`, with room for `size_gib` GiB of objects.

    Raises:
        MissingToolError: not installed.
        ServiceError: it did not start.
    """
    tools = find_tools(TOOLS)
    directory = directory / "ceph"
    for part in ("mon", "osd"):
        (directory / part).mkdir(parents=True)
    ports = Ports(*free_ports(3))
    certificates = make_certificates(directory) if tls else None
    fsid = str(uuid.uuid4())
    (directory / "ceph.conf").write_text(ceph_conf(directory, fsid, ports, size_gib, certificates))
    with ExitStack() as daemons:
        cluster = _Cluster(tools, directory, ports, daemons)
        _start_monitor(cluster, fsid)
        _start_osd(cluster)
        cluster.admin(
            *("user", "create", "--uid", _USER, "--display-name", _USER),
            *("--access-key", _USER, "--secret-key", _SECRET),
        )
        yield CephServer(
            name="ceph",
            http=f"http://127.0.0.1:{ports.http}",
            https=f"https://127.0.0.1:{ports.https}" if certificates else None,
            ca_file=certificates.ca if certificates else None,
            access_key=_USER,
            secret_key=_SECRET,
            cluster=cluster,
        )


def _start_monitor(cluster: _Cluster, fsid: str) -> None:
    monmap = str(cluster.directory / "monmap")
    address = mon_address(cluster.ports)
    create = ["--create", "--clobber", "--fsid", fsid, "--addv", "a", f"[{address}]", monmap]
    tool([cluster.tools["monmaptool"], *create])
    cluster.run("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap)
    monitor = cluster.start("ceph-mon", "-i", "a", "--public-addr", address)
    monitor.wait_until(lambda: answers(cluster.ports.mon))


def _start_osd(cluster: _Cluster) -> None:
    identity = str(uuid.uuid4())
    number = cluster.run("ceph", "--connect-timeout", "30", "osd", "new", identity).strip()
    cluster.run("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", identity)
    osd = cluster.start("ceph-osd", "-i", number)
    osd.wait_until(lambda: " 1 up" in cluster.run("ceph", "osd", "stat"))
