"""The text of an alert, for a person with a phone, and its forms for each kind of target. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

from hpckit.alerts.alert_occasions import AlertOccasion
from hpckit.config.spec import EmailSpec
from hpckit.report.overview import Overview
from hpckit.report.run_state import RunState
from hpckit.report.why import explain_run
from hpckit.text.quantities import count, moment

_MOST_CHARACTERS = 1500  # of one text: a message is read on a phone
_MENTION = re.compile(r"@(?=\w)")
_NOT_ON_A_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_OF_VERDICT = ("state", "verdict", "where", "error", "next")
_OF_OTHERS = ("state", "next")


@dataclass(frozen=True)
class AlertMessage:
    """An alert as text."""

    run: str
    path: str
    kind: str
    headline: str
    time: float
    """Seconds since the epoch."""
    facts: tuple[tuple[str, str], ...]
    """Lines, each with the name that begins it."""
    commands: tuple[str, ...]
    step: int
    steps: int | None
    saved_step: int
    job: str | None
    verdict: dict[str, Any] | None = None
    """Kind and reason; None: the alert is not about the end of the run."""

    @property
    def title(self) -> str:
        return f"{self.run}: {self.headline}"

    @property
    def text(self) -> str:
        """The message below its title."""
        lines = [f"{name}: {text}" for name, text in self.facts]
        return "\n".join((*lines, *(f"    {command}" for command in self.commands)))


def compose_alert(
    occasion: AlertOccasion,
    it: Overview,
    *,
    host: str,
    now: float,
    withheld: int = 0,
) -> AlertMessage:
    """Composes the alert about `occasion`.

    Args:
        it: the run after the occasion.
        host: the machine that sends the alert.
        now: seconds since the epoch.
        withheld: number of alerts to this target that were withheld before this one.
    """
    p, path = it.progress, str(it.run.path)
    is_end = it.state in (RunState.ENDED, RunState.FAILED)
    found = explain_run(it, None, now)
    shown = _OF_VERDICT if is_end else _OF_OTHERS
    facts = [("what", occasion.what)] if occasion.what is not None else []
    facts += [(one.name, one.text) for one in found.facts if one.name in shown]
    where = f"job {p.job}, {path}" if p.job else f"{host}, {path}"
    if p.hosts:
        where = f"job {p.job} on {count(len(p.hosts), 'node')} ({_few(p.hosts)}), {path}"
    facts.append(("run", where))
    facts.append(("time", moment(occasion.time, now)))
    if withheld:
        facts.append(("withheld", f"{count(withheld, 'message')} before this one"))
    verdict = it.verdict if is_end else None
    return AlertMessage(
        run=it.run.name,
        path=path,
        kind=occasion.kind,
        headline=occasion.headline,
        time=occasion.time,
        facts=tuple((name, _shortened(str(text))) for name, text in facts),
        commands=tuple(dict.fromkeys((f"hpckit why {shlex.quote(path)}", *found.commands))),
        step=p.step,
        steps=p.steps,
        saved_step=p.saved_step,
        job=p.job,
        verdict=verdict and {"kind": verdict.get("kind"), "reason": verdict.get("reason")},
    )


def trial_message(run: str, host: str, now: float) -> AlertMessage:
    """Returns the message of `hpckit alerts test`."""
    text = "this is a trial message of hpckit alerts test; nothing has happened"
    return AlertMessage(
        run=run,
        path="",
        kind="test",
        headline="trial message",
        time=now,
        facts=(("what", text), ("from", host)),
        commands=(),
        step=0,
        steps=None,
        saved_step=0,
        job=None,
    )


def slack_document(message: AlertMessage) -> dict[str, Any]:
    """Returns the document for an incoming webhook of Slack. Its control sequences and mentions in
    the text have no effect."""
    title, text = (_for_slack(part) for part in (message.title, message.text))
    return {"text": f"*{title}*\n```\n{text}\n```", "unfurl_links": False}


def mattermost_document(message: AlertMessage) -> dict[str, Any]:
    """Returns the document for an incoming webhook of Mattermost. Mentions in the text have no
    effect."""
    title, text = (
        _without_mentions(_without_fence(part)) for part in (message.title, message.text)
    )
    return {"text": f"**{title}**\n```\n{text}\n```"}


def plain_document(message: AlertMessage) -> dict[str, Any]:
    """Returns the document for a server of the user's."""
    return {
        "version": 1,
        "run": message.run,
        "path": message.path,
        "kind": message.kind,
        "title": message.title,
        "text": message.text,
        "facts": [{"name": name, "text": text} for name, text in message.facts],
        "commands": list(message.commands),
        "time": message.time,
        "step": message.step,
        "steps": message.steps,
        "saved_step": message.saved_step,
        "job": message.job,
        "verdict": message.verdict,
    }


def email_document(message: AlertMessage, spec: EmailSpec) -> bytes:
    """Returns the e-mail with its headers.

    Raises:
        ValueError: an address has a line break, which would begin a header of its own.
    """
    mail = EmailMessage(policy=SMTP)
    if spec.sender is not None:
        mail["From"] = spec.sender
    mail["To"] = ", ".join(spec.to)
    mail["Subject"] = _NOT_ON_A_LINE.sub(" ", f"[hpckit] {message.title}")[:200]
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(f"{message.title}\n\n{message.text}\n", charset="utf-8")
    return bytes(mail)


def _few(hosts: tuple[str, ...]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{hosts[0]} to {hosts[-1]}"


def _shortened(text: str) -> str:
    text = _NOT_ON_A_LINE.sub(" ", text)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"


def _without_fence(text: str) -> str:
    return text.replace("```", "'''")


def _without_mentions(text: str) -> str:
    return _MENTION.sub("@\u200b", text)


def _for_slack(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _without_fence(text)
