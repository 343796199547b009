"""The targets of alerts that a spec configures."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpckit.alerts.alert_errors import AlertRejectedError
from hpckit.alerts.alert_message import (
    AlertMessage,
    email_document,
    mattermost_document,
    plain_document,
    slack_document,
)
from hpckit.alerts.sendmail import find_sendmail, send_mail
from hpckit.alerts.webhook_request import post
from hpckit.alerts.webhook_url import webhook_url
from hpckit.config.spec import AlertKind, AlertsSpec, EmailSpec, WebhookSpec


@dataclass(frozen=True)
class AlertTarget:
    """A target that is configured."""

    name: str
    kinds: tuple[AlertKind, ...]
    send: Callable[[AlertMessage], None]
    """Raises AlertUnavailableError or AlertRejectedError."""
    check: Callable[[], object]
    """Raises AlertRejectedError if the target cannot be used from this machine."""


def alert_targets(spec: AlertsSpec) -> list[AlertTarget]:
    """Returns the targets that `spec` configures. A webhook's URL is read each time it is used, so
    that it can be changed during a run."""
    hooks = (
        ("slack", spec.slack, slack_document),
        ("mattermost", spec.mattermost, mattermost_document),
        ("webhook", spec.webhook, plain_document),
    )
    found = [
        _webhook_target(name, hook, document)
        for name, hook, document in hooks
        if hook.url_env is not None or hook.url_file is not None
    ]
    return [*found, _email_target(spec.email)] if spec.email.to else found


def target_problems(spec: AlertsSpec) -> list[str]:
    """Returns why alerts cannot be sent from this machine, a line for each target that begins with
    its key."""
    problems = []
    for target in alert_targets(spec):
        try:
            target.check()
        except AlertRejectedError as error:
            problems.append(f"alerts.{target.name}: {error}")
    return problems


def _webhook_target(
    name: str,
    spec: WebhookSpec,
    document: Callable[[AlertMessage], dict[str, Any]],
) -> AlertTarget:
    def send(message: AlertMessage) -> None:
        post(webhook_url(spec, os.environ), document(message))

    return AlertTarget(name, spec.kinds, send, partial(webhook_url, spec, os.environ))


def _email_target(spec: EmailSpec) -> AlertTarget:
    def send(message: AlertMessage) -> None:
        try:
            mail = email_document(message, spec)
        except ValueError as error:
            raise AlertRejectedError(f"the e-mail cannot be written: {error}") from None
        send_mail(mail, spec, os.environ)

    return AlertTarget("email", spec.kinds, send, partial(find_sendmail, spec, os.environ))
