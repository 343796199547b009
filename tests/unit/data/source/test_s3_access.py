"""Access to S3 by options, AWS_* and ~/.aws is the same for shards and for stores of checkpoints.

Each client asks servers on loopback for one object; what counts is which server was asked, and with
which keys.
"""

from __future__ import annotations

import http.server
import itertools
import logging
import os
import pwd
import re
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from checkpointing.errors import StoreError
from checkpointing.storage import open_storage
from checkpointing.storage.s3 import s3_options
from checkpointing.storage.s3.aws_profile import needs_profile, profile_settings
from checkpointing.storage.s3.obstore_clients import build, build_reader
from data.errors import DataError, FetchError
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from tests.services.certificates import make_certificates

_SCOPE = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/s3/")
_ROLE = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<Credentials><AccessKeyId>of-role</AccessKeyId><SecretAccessKey>s</SecretAccessKey>
<SessionToken>t-role</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>a:s</AssumedRoleId>
</AssumedRoleUser></AssumeRoleResult></AssumeRoleResponse>"""


@dataclass(frozen=True)
class Asked:
    """What a server saw of a request."""

    server: str
    path: str
    key: str | None  # identifier of the access key; None: unsigned
    region: str | None
    token: str | None


@dataclass
class Servers:
    """Servers on loopback that have no object."""

    urls: dict[str, str] = field(default_factory=dict)
    seen: list[Asked] = field(default_factory=list)


@contextmanager
def serving(name: str, seen: list[Asked], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            scope = _SCOPE.search(self.headers.get("Authorization", ""))
            key, region = scope.groups() if scope else (None, None)
            token = self.headers.get("X-Amz-Security-Token")
            seen.append(Asked(name, self.path, key, region, token))
            self._answer(404, b"")

        do_HEAD = do_GET  # noqa: N815

        def do_POST(self) -> None:  # of a role
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200, _ROLE.encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def all_servers() -> Iterator[Servers]:
    servers = Servers()
    with ExitStack() as stack:
        for name in ("option", "s3", "global", "services", "profile"):
            servers.urls[name] = stack.enter_context(serving(name, servers.seen))
        yield servers


@pytest.fixture
def servers(all_servers: Servers, home: Path) -> Servers:
    all_servers.seen.clear()
    return all_servers


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without settings, in an environment without any."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(s3_options, "_said", set())
    (tmp_path / ".aws").mkdir()
    return tmp_path


def ask_shard(options: dict[str, Any]) -> None:
    sources = Sources(
        {"s3": options}, retry=SourceRetryPolicy(budget_s=0.1, least_tries=1), stall_s=5.0
    )
    try:
        sources.read("s3://bkt/a.tar", 0, 1)
    except FetchError as error:
        if "404 Not Found" not in str(error):
            raise


def ask_store(options: dict[str, Any]) -> None:
    storage = open_storage("s3://bkt", options={**options, "budget_s": 0.1, "timeout_s": 5.0})
    with closing(storage), suppress(FileNotFoundError):
        storage.get("a.tar")


def ask_s3fs(options: dict[str, Any]) -> None:
    ask_store({**options, "client": "s3fs"})


CLIENTS: list[Callable[[dict[str, Any]], None]] = [ask_shard, ask_store, ask_s3fs]
CONFIG = """
[default]
region = r-default
endpoint_url = {profile}
[profile parts]
region = r-parts
endpoint_url = {profile}
services = mine
[profile process]
region = r-process
endpoint_url = {profile}
credential_process = {python} {process}
[profile role]
region = r-role
endpoint_url = {profile}
role_arn = arn:aws:iam::1:role/r
source_profile = default
[profile bare]
region = r-bare
[services mine]
ec2 =
  endpoint_url = http://127.0.0.1:1
s3 =
  endpoint_url = {services}
"""
CREDENTIALS = """
[default]
aws_access_key_id = of-default
aws_secret_access_key = s
[parts]
aws_access_key_id = of-parts
aws_secret_access_key = s
aws_session_token = t-parts
[bare]
aws_access_key_id = of-bare
aws_secret_access_key = s
endpoint_url = {profile}
"""
PROCESS = """
print('{"Version": 1, "AccessKeyId": "of-process", "SecretAccessKey": "s", "SessionToken": "t"}')
"""
KEYS = {"AWS_ACCESS_KEY_ID": "of-env", "AWS_SECRET_ACCESS_KEY": "s"}
GIVEN = {"access_key_id": "of-option", "secret_access_key": "s"}


def write_profiles(home: Path, urls: dict[str, str]) -> None:
    process = home / "process.py"
    process.write_text(PROCESS)
    words = {**urls, "python": sys.executable, "process": str(process)}
    (home / ".aws/config").write_text(CONFIG.format(**words))
    (home / ".aws/credentials").write_text(CREDENTIALS.format(**words))


# {name}: the URL of that server
@pytest.mark.parametrize(
    ("options", "env", "server", "key", "region", "token"),
    [
        ({}, {}, "profile", "of-default", "r-default", None),
        ({}, {"AWS_ENDPOINT_URL": "{global}"}, "global", "of-default", "r-default", None),
        (
            {},
            {"AWS_ENDPOINT_URL": "{global}", "AWS_ENDPOINT_URL_S3": "{s3}"},
            *("s3", "of-default", "r-default", None),
        ),
        (
            {"endpoint": "{option}"},
            {"AWS_ENDPOINT_URL": "{global}", "AWS_ENDPOINT_URL_S3": "{s3}"},
            *("option", "of-default", "r-default", None),
        ),
        ({}, {"AWS_PROFILE": "parts"}, "services", "of-parts", "r-parts", "t-parts"),
        (
            {"profile": "parts"},
            {"AWS_PROFILE": "bare", **KEYS},
            *("services", "of-parts", "r-parts", "t-parts"),
        ),
        (
            {"profile": "parts"},
            {"AWS_ENDPOINT_URL": "{global}"},
            "global",
            "of-parts",
            "r-parts",
            "t-parts",
        ),
        ({"profile": "bare"}, {}, "profile", "of-bare", "r-bare", None),
        ({"profile": "process"}, {}, "profile", "of-process", "r-process", "t"),
        ({"profile": "role"}, {}, "profile", "of-role", "r-role", "t-role"),
        ({}, KEYS, "profile", "of-env", "r-default", None),
        ({}, {**KEYS, "AWS_SESSION_TOKEN": "t-env"}, "profile", "of-env", "r-default", "t-env"),
        (GIVEN, {**KEYS, "AWS_SESSION_TOKEN": "t-env"}, "profile", "of-option", "r-default", None),
        ({**GIVEN, "session_token": "t"}, {}, "profile", "of-option", "r-default", "t"),
        ({}, {"AWS_DEFAULT_REGION": "r-2"}, "profile", "of-default", "r-2", None),
        (
            {},
            {"AWS_DEFAULT_REGION": "r-2", "AWS_REGION": "r-1"},
            "profile",
            "of-default",
            "r-1",
            None,
        ),
        ({"region": "r-0"}, {"AWS_REGION": "r-1"}, "profile", "of-default", "r-0", None),
        ({"anonymous": True}, KEYS, "profile", None, None, None),
    ],
)
def test_all_clients_ask_one_server_with_the_same_keys(
    servers: Servers,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    env: dict[str, str],
    server: str,
    key: str | None,
    region: str | None,
    token: str | None,
) -> None:
    write_profiles(home, servers.urls)
    for name, value in env.items():
        monkeypatch.setenv(name, value.format(**servers.urls))
    filled = {k: v.format(**servers.urls) if isinstance(v, str) else v for k, v in options.items()}
    for ask in CLIENTS:
        servers.seen.clear()
        ask(filled)
        assert servers.seen == [Asked(server, "/bkt/a.tar", key, region, token)], ask.__name__


@pytest.mark.parametrize("ask", CLIENTS)
def test_files_of_a_profile_elsewhere(
    servers: Servers, home: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[..., None]
) -> None:
    write_profiles(home, servers.urls)
    (home / ".aws").rename(home / "elsewhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "elsewhere/config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "elsewhere/credentials"))
    ask({})
    assert [(one.server, one.key) for one in servers.seen] == [("profile", "of-default")]


@pytest.mark.parametrize(
    ("option", "env", "profile"),
    [
        ("own", "other", "other"),
        (None, "own", "other"),
        (None, None, "own"),
        (None, None, None),
        (None, "other", "own"),
        ("other", "own", "own"),
    ],
)
def test_all_clients_trust_one_bundle(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str | None,
    env: str | None,
    profile: str | None,
) -> None:
    bundles = {}
    for name in ("own", "other"):
        (home / name).mkdir()
        bundles[name] = make_certificates(home / name)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(bundles["own"].certificate, bundles["own"].key)
    seen: list[Asked] = []
    with serving("tls", seen, tls) as url:
        line = f"ca_bundle = {bundles[profile].ca}\n" if profile else ""
        text = f"[default]\nregion = r\nendpoint_url = {url}\n{line}"
        (home / ".aws/config").write_text(text)
        options: dict[str, Any] = dict(GIVEN)
        if option:
            options["ca_bundle"] = str(bundles[option].ca)
        if env:
            monkeypatch.setenv("AWS_CA_BUNDLE", str(bundles[env].ca))
        right = next((name for name in (option, env, profile) if name), None) == "own"
        for ask in CLIENTS:
            seen.clear()
            if right:
                ask(options)
                assert [one.server for one in seen] == ["tls"], ask.__name__
            else:
                with pytest.raises((StoreError, FetchError)):
                    ask(options)
                assert seen == [], ask.__name__


@pytest.mark.parametrize(
    ("options", "env", "config", "says"),
    [
        ({"profile": "nobody"}, {}, "", "no profile 'nobody' in ~/.aws"),
        ({"endpoint": "http://k:hush@f"}, {}, "", "contains credentials"),
        ({}, {"AWS_ENDPOINT_URL": "http://k:hush@f"}, "", "contains credentials"),
        ({}, {}, "endpoint_url = http://k:hush@f", "contains credentials"),
        ({}, {}, "endpoint_url = f", "a URL such as"),
        ({"endpoint": "ftp://f"}, {}, "", "a URL such as"),
        (
            {},
            {},
            "ca_bundle = /nowhere/ca.pem",
            r"cannot read the trusted certificates /nowhere/ca\.pem: No such",
        ),
        (
            {},
            {"AWS_CA_BUNDLE": "/nowhere/b"},
            "",
            "cannot read the trusted certificates /nowhere/b: No such",
        ),
        (
            {"ca_bundle": "/nowhere/c"},
            {},
            "",
            "cannot read the trusted certificates /nowhere/c: No such",
        ),
        ({}, {}, "services = none", "services section 'none', which does not exist"),
        ({}, {}, "[hush", "config: it cannot be parsed"),
        ({"access_key_id": "hush"}, {}, "", "must be given together"),
        ({"anonymous": "hush"}, {}, "", "expected true or false"),
        ({"addressing": "hush"}, {}, "", "one of"),
        ({"virtual_host": "hush"}, {}, "", "expected true or false"),
        ({"virtual_host": True, "addressing": "virtual"}, {}, "", "earlier name of addressing"),
    ],
)
def test_all_clients_refuse_the_same(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    env: dict[str, str],
    config: str,
    says: str,
) -> None:
    (home / ".aws/config").write_text(f"[default]\nregion = r\n{config}\n")
    for name, value in {**KEYS, **env}.items():
        monkeypatch.setenv(name, value)
    for ask in CLIENTS:
        with pytest.raises((StoreError, DataError), match=says) as caught:
            ask(options)
        assert "hush" not in str(caught.value), ask.__name__


@pytest.mark.parametrize("ask", CLIENTS[:2])
def test_the_earlier_name_of_addressing(
    servers: Servers, caplog: pytest.LogCaptureFixture, ask: Callable[..., None]
) -> None:
    options = {**GIVEN, "region": "r", "endpoint": servers.urls["option"]}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ask({**options, "virtual_host": False})
    assert [one.path for one in servers.seen] == ["/bkt/a.tar"] * 2
    said = [text for text in caplog.messages if "virtual_host" in text]
    assert len(said) == 1
    assert "addressing=path" in said[0]


@pytest.mark.parametrize("given", [{"virtual_host": True}, {"addressing": "virtual"}])
def test_both_halves_put_the_bucket_into_the_host_name(home: Path, given: dict[str, Any]) -> None:
    (home / ".aws/config").write_text("[default]\nendpoint_url = https://s3.example.org/\n")
    place, options = s3_options.S3Location("bkt", ""), s3_options.S3StoreOptions.parse(given)
    store = build(place, options, KEYS).small
    reader = build_reader("bkt", s3_options.S3AccessOptions.parse(given), KEYS, 5.0)
    for name in ("endpoint", "virtual_hosted_style_request"):
        assert dict(store.config)[name] == dict(reader.config)[name]
    assert dict(reader.config)["endpoint"] == "https://bkt.s3.example.org"


def test_a_user_without_a_home_has_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert profile_settings(None, {}) == {}
    assert not needs_profile(None, {})


TEXTS = [
    "",
    "[default]\nregion = a\n",
    "[profile default]\nregion = b\n[default]\nendpoint_url=http://c\n",
    "[profile p]\nregion = c  \nEndpoint_URL = http://c # d\nca_bundle = ~/x\n",
    "[profile 'p q']\nregion = d\n",
    "[p]\nregion = e\n[profile p]\nregion = f\n",
    "[profile p]\ns3 =\n  addressing_style = virtual\n  endpoint_url = http://no\nregion = g\n",
    "; comment\n[profile p]\nservices = s\n[services s]\ns3 = \n  endpoint_url = http://h\n",
    "[profile p]\nservices = s\nendpoint_url = http://i\n[services s]\nec2 =\n  endpoint_url = x\n",
]


@pytest.mark.parametrize(("config", "credentials"), list(itertools.product(TEXTS, TEXTS[:3])))
def test_profiles_are_read_as_botocore_reads_them(
    home: Path, config: str, credentials: str
) -> None:
    session = pytest.importorskip("botocore.session")
    provider = pytest.importorskip("botocore.configprovider")
    (home / ".aws/config").write_text(config)
    (home / ".aws/credentials").write_text(credentials)
    for name in ("default", "p", "p q"):
        theirs = session.Session(profile=name)
        if name not in theirs.full_config["profiles"]:
            if name != "default":
                with pytest.raises(StoreError, match="no profile"):
                    profile_settings(name, {})
            continue
        scoped = theirs.get_scoped_config()
        endpoints = provider.ConfiguredEndpointProvider(theirs.full_config, scoped, "s3", {})
        ours = profile_settings(name, {})
        assert ours.get("endpoint_url") == endpoints.provide()
        for setting in ("region", "ca_bundle"):
            assert ours.get(setting) == scoped.get(setting)
