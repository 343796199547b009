"""The configuration of a throw-away Ceph: one monitor, one OSD in memory, one gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.services.certificates import Certificates

Section = Mapping[str, object]

# What makes it start in seconds: no keys, no manager, one copy of everything, and a monitor that
# does not gather proposals for a second before it acts on them.
_QUICK: Section = {
    "auth_cluster_required": "none",
    "auth_service_required": "none",
    "auth_client_required": "none",
    "ms_mon_client_mode": "crc",  # the gateway's default, "secure", needs keys
    "ms_mon_service_mode": "crc",
    "ms_mon_cluster_mode": "crc",
    "paxos_propose_interval": 0.01,
    "paxos_min_wait": 0.005,
    "osd_pool_default_size": 1,
    "osd_pool_default_min_size": 1,
    "osd_pool_default_pg_num": 4,
    "osd_pool_default_pgp_num": 4,
    "osd_pool_default_pg_autoscale_mode": "off",
    "osd_crush_chooseleaf_type": 0,
    "mon_allow_pool_size_one": "true",
    "mon_max_pg_per_osd": 1000,
    "mon_data_avail_crit": 0,
}
_QUIET: Section = {
    "admin_socket": "",
    "log_to_stderr": "false",
    "err_to_stderr": "true",
    "mon_cluster_log_to_file": "false",
    "debug_mon": 0,
    "debug_osd": 0,
    "debug_ms": 0,
    "debug_rgw": 0,
}
_LOOPBACK: Section = {
    "public_addr": "127.0.0.1",
    "cluster_addr": "127.0.0.1",
    "public_network": "127.0.0.0/8",
    "cluster_network": "127.0.0.0/8",
    "ms_bind_ipv6": "false",
}


@dataclass(frozen=True)
class Ports:
    """TCP ports on loopback."""

    mon: int
    http: int
    https: int


def ceph_conf(
    directory: Path, fsid: str, ports: Ports, size_gib: int, tls: Certificates | None
) -> str:
    """The text of ceph.conf for a cluster whose files lie in `directory`."""
    sections: dict[str, Section] = {
        "global": {
            "fsid": fsid,
            "mon_host": f"[{mon_address(ports)}]",
            "mon_initial_members": "a",
            "run_dir": directory,
            "crash_dir": directory,
            "log_file": f"{directory}/$name.log",
            **_LOOPBACK,
            **_QUICK,
            **_QUIET,
        },
        "mon": {"mon_data": f"{directory}/mon"},
        "osd": {
            "osd_data": f"{directory}/osd",
            "osd_objectstore": "memstore",
            "memstore_device_bytes": size_gib << 30,
            "osd_class_load_list": "*",
            "osd_class_default_list": "*",
        },
        "client.rgw": {
            "rgw_frontends": _frontend(ports, tls),
            "rgw_dns_name": "localhost",
            # its cache waits 30 s for each gateway that was killed, whenever a bucket is made
            "rgw_cache_enabled": "false",
            "rgw_enable_usage_log": "false",
            "rgw_dynamic_resharding": "false",
            "rgw_run_sync_thread": "false",
            "rgw_gc_obj_min_wait": 60,
            "rgw_gc_processor_period": 60,
        },
    }
    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in section.items())
        for name, section in sections.items()
    )


def mon_address(ports: Ports) -> str:
    return f"v2:127.0.0.1:{ports.mon}"


def _frontend(ports: Ports, tls: Certificates | None) -> str:
    # without tcp_nodelay every small reply waits 40 ms for an acknowledgement
    plain = f"beast endpoint=127.0.0.1:{ports.http} tcp_nodelay=1"
    if tls is None:
        return plain
    return (
        f"{plain} ssl_endpoint=127.0.0.1:{ports.https}"
        f" ssl_certificate={tls.certificate} ssl_private_key={tls.key}"
    )
