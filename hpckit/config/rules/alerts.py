"""Rules for alerts, as pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.config.spec import RunSpec


def alert_violations(spec: RunSpec) -> Iterator[str]:
    """Yields all problems of `spec.alerts`, one line each, the key first."""
    alerts = spec.alerts
    hooks = {"slack": alerts.slack, "mattermost": alerts.mattermost, "webhook": alerts.webhook}
    for name, hook in hooks.items():
        if hook.url_env is not None and hook.url_file is not None:
            yield (
                f"alerts.{name}.url_file: the URL is also in the variable "
                f"alerts.{name}.url_env={hook.url_env}; set one of them to null"
            )
