"""E-mail by a real program, which keeps what it gets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hpckit.alerts.alert_errors import AlertError, AlertRejectedError, AlertUnavailableError
from hpckit.alerts.sendmail import send_mail
from hpckit.config.spec import EmailSpec


def program(folder: Path, lines: str = "") -> dict[str, str]:
    """Puts a sendmail into a folder; returns an environment that finds it."""
    file = folder / "sendmail"
    file.write_text(
        f"#!{sys.executable}\nimport json, sys, time, pathlib\n{lines}\n"
        "record = [sys.argv[1:], sys.stdin.buffer.read().decode()]\n"
        f"pathlib.Path({str(folder / 'got')!r}).write_text(json.dumps(record))\n"
    )
    file.chmod(0o755)
    return {"PATH": str(folder)}


def email(program: str = "sendmail", sender: str | None = None) -> EmailSpec:
    to = ("a@example.org", "b@example.org")
    return EmailSpec(to=to, sender=sender, program=program, kinds=("verdict",))


def test_a_mail_and_its_recipients_reach_the_program(tmp_path: Path) -> None:
    env = program(tmp_path)
    send_mail(b"To: a\r\n\r\n.\r\n$(touch x)\r\n", email(sender="me@example.org"), env)
    words, text = json.loads((tmp_path / "got").read_text())
    assert words == ["-i", "-f", "me@example.org", "a@example.org", "b@example.org"]
    assert text == "To: a\r\n\r\n.\r\n$(touch x)\r\n"


@pytest.mark.parametrize(
    ("lines", "kind", "words"),
    [
        ("sys.exit(75)", AlertUnavailableError, "status 75"),
        (
            "sys.stderr.write('no such user\\nmore'); sys.exit(67)",
            AlertRejectedError,
            "no such user",
        ),
        ("import os; os.kill(os.getpid(), 9)", AlertUnavailableError, "status -9"),
    ],
)
def test_a_failure_says_whether_another_try_may_help(
    tmp_path: Path, lines: str, kind: type[AlertError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        send_mail(b"x", email(), program(tmp_path, lines))


def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    env = program(tmp_path, "time.sleep(600)")
    with pytest.raises(AlertUnavailableError, match="has not ended"):
        send_mail(b"x", email(), env, timeout_s=0.3)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(AlertRejectedError, match="there is no program mailer"):
        send_mail(b"x", email("mailer"), {"PATH": str(tmp_path)})
