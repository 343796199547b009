"""What a person reads in an alert."""

from __future__ import annotations

import time
from dataclasses import replace
from email import message_from_bytes
from email.policy import default
from pathlib import Path

import pytest

from hpckit.alerts.alert_message import (
    AlertMessage,
    compose_alert,
    email_document,
    mattermost_document,
    plain_document,
    slack_document,
    trial_message,
)
from hpckit.alerts.alert_occasions import AlertOccasion, OccasionFinder
from hpckit.config.spec import EmailSpec
from hpckit.events.schema import event_of
from hpckit.report.overview import Overview
from hpckit.report.progress import build_progress
from hpckit.report.run_state import RunState
from hpckit.report.why import explain_run
from hpckit.rundir.directory import RunDir
from tests.unit.hpckit.specs_and_processes import make_spec

NOW = time.time()
HOSTS = ["gpu1", "gpu2"]
EMAIL = EmailSpec(to=("me@example.org",), sender=None, program="sendmail", kinds=("verdict",))
TRIAL = trial_message("gpt", "login1", NOW)


def ended_run(
    reason: str = "rank 3 raised ValueError: no <@here> &",
) -> tuple[Overview, AlertOccasion]:
    record = {"verdict": "crash", "reason": reason, "final": True, "step": 120, "generation": 1}
    events = [
        event_of(NOW - 90, "run_started", {"steps": 500, "job": "77", "hosts": HOSTS}),
        event_of(NOW - 80, "step", {"step": 120, "step_s": 0.5, "generation": 1}),
        event_of(NOW - 70, "checkpoint_committed", {"step": 100}),
        event_of(NOW - 60, "generation_ended", record),
        event_of(NOW - 60, "run_ended", {"verdict": "crash"}),
    ]
    finder = OccasionFinder()
    occasion = [finder.find(event) for event in events][-1]
    assert occasion is not None
    verdict = {"kind": "crash", "final": True, "reason": reason, "generation": 1, "time": NOW - 60}
    it = Overview(
        run=RunDir(Path("/runs/gpt-1a2b3c4d")),
        spec=make_spec(),
        state=occasion.state,
        verdict=verdict,
        progress=build_progress(events),
        numbers=(),
        jobs=(),
        owner=None,
        problem=None,
    )
    return it, occasion


def composed(reason: str = "rank 3 raised ValueError: no <@here> &") -> AlertMessage:
    it, occasion = ended_run(reason)
    return compose_alert(occasion, it, host="gpu1", now=NOW, withheld=3)


def test_an_alert_says_what_why_says_and_what_to_type() -> None:
    it, _ = ended_run()
    told, message = explain_run(it, None, NOW), composed()
    for fact in told.facts:
        assert f"{fact.name}: {fact.text}" in message.text
    for command in (*told.commands, "hpckit why /runs/gpt-1a2b3c4d"):
        assert command in message.text
    assert message.title == "gpt-1a2b3c4d: ended: crash"
    assert "job 77 on 2 nodes (gpu1, gpu2), /runs/gpt-1a2b3c4d" in message.text
    assert "step 120 of 500" in message.text
    assert "checkpoint at step 100" in message.text
    assert "3 messages before this one" in message.text


def test_a_plain_document_has_everything() -> None:
    document = plain_document(composed())
    assert document["kind"] == "verdict"
    assert document["verdict"]["kind"] == "crash"
    assert (document["step"], document["steps"], document["saved_step"]) == (120, 500, 100)
    assert document["job"] == "77"


def test_a_chat_mentions_no_one_and_shows_the_text_as_it_is() -> None:
    slack, chat = slack_document(composed())["text"], mattermost_document(composed())["text"]
    assert "no &lt;@here&gt; &amp;" in slack
    assert "@here" not in chat
    assert "here" in chat
    fenced = composed("``` out of the block @channel")
    assert slack_document(fenced)["text"].count("```") == 2
    assert mattermost_document(fenced)["text"].count("```") == 2


def test_a_message_is_short_enough_for_a_phone() -> None:
    assert len(composed("x" * 100_000).text) < 10_000


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\x0b", "\u2028", "\x85"])
def test_no_text_of_a_run_begins_a_header(end: str) -> None:
    bad = replace(TRIAL, headline=f"ended{end}Bcc: all@example.org")
    mail = message_from_bytes(email_document(bad, EMAIL), policy=default)
    assert set(mail.keys()) <= {
        *("To", "Subject", "Auto-Submitted", "MIME-Version"),
        *("Content-Type", "Content-Transfer-Encoding"),
    }
    assert mail["To"] == "me@example.org"


@pytest.mark.parametrize("address", ["a@b\nBcc: c@d", "a@b\r\nBcc: c@d"])
def test_an_address_that_would_begin_a_header_is_refused(address: str) -> None:
    with pytest.raises(ValueError):
        email_document(TRIAL, replace(EMAIL, sender=address))
    with pytest.raises(ValueError):
        email_document(TRIAL, replace(EMAIL, to=(address,)))


def test_a_run_that_was_interrupted_is_described_as_alive() -> None:
    it, occasion = ended_run()
    waiting = replace(it, state=RunState.WAITING)
    other = replace(occasion, kind="interrupted", what="preempted: saved", state=RunState.WAITING)
    text = compose_alert(other, waiting, host="gpu1", now=NOW).text
    assert "what: preempted: saved" in text
    assert "it continues automatically from the checkpoint at step 100" in text
