"""Messages to people about a run."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Address, Count, EnvName, Folder, Line, Positive

AlertKind: TypeAlias = Literal["verdict", "done", "no_progress", "degraded", "interrupted"]
AlertKinds = Annotated[tuple[AlertKind, ...], Field(min_length=1)]


@dataclass(frozen=True, config=GROUP)
class WebhookSpec:
    """A webhook. Its URL is a secret, so the config only says where it is read."""

    url_env: EnvName | None
    """Environment variable with the URL; null: none. The job needs it, too."""
    url_file: Folder | None
    """File with the URL, which only its owner may read (mode 0600), on a file system that all nodes
    have; null: none. With neither, no message is sent."""
    kinds: AlertKinds
    """What is reported: `verdict` (the run has ended before its last step, or its last supervisor
    ended without a verdict), `done`, `no_progress` (a hang, or jobs without a new checkpoint),
    `degraded` (the run continues with less than was requested, or a node is left out), and
    `interrupted` (the run was interrupted and continues automatically)."""


@dataclass(frozen=True, config=GROUP)
class EmailSpec:
    """E-mail by a program with the interface of sendmail."""

    to: tuple[Address, ...]
    """Addresses of the recipients; empty: no e-mail is sent."""
    sender: Address | None
    """Address of the sender; null: the program chooses it."""
    program: Line
    """The program, by name or path. A name is looked up in PATH, /usr/sbin and /usr/lib."""
    kinds: AlertKinds
    """As of a webhook."""


@dataclass(frozen=True, config=GROUP)
class AlertsSpec:
    """Messages to people about a run (`conf/alerts/`), by its supervisor. A run continues if they
    cannot be sent."""

    slack: WebhookSpec
    """Incoming webhook of Slack."""
    mattermost: WebhookSpec
    """Incoming webhook of Mattermost."""
    webhook: WebhookSpec
    """A server that takes a JSON document."""
    email: EmailSpec
    """E-mail."""
    repeat_minutes: Positive
    """Minutes until the same message may be sent again."""
    max_per_hour: Count
    """Messages per hour and target; further ones are counted in the next one. Verdicts are sent in
    any case."""

    @property
    def has_targets(self) -> bool:
        """Whether any target is configured."""
        hooks = (self.slack, self.mattermost, self.webhook)
        return bool(self.email.to) or any(one.url_env or one.url_file for one in hooks)
