"""The arguments and the config of torchrun, which behave alike in every version of torch that
hpckit supports."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

from hpckit.torch_internals import LaunchConfig, config_from_args, parse_args, worker_processes

_SIGNALS = "--signals-to-handle="


def launch_config(arguments: Sequence[str]) -> LaunchConfig:
    """Return the config that torchrun makes of `arguments`, without any use of CUDA.

    Since 2.9 `LaunchConfig` counts the GPUs to choose its NUMA binding, unless one is given. It
    would choose none (`torch._utils_internal.get_default_numa_options`).
    """
    args = parse_args(known_arguments(arguments))  # type: ignore[no-untyped-call]
    is_stated = getattr(args, "numa_binding", None) is not None
    if not is_stated:
        args.numa_binding = "node"
    config, _, _ = config_from_args(args)
    if not is_stated:
        config.numa_options = None
    return config


def known_arguments(arguments: Sequence[str]) -> list[str]:
    """Return `arguments` without those that this version of torchrun does not know, which are
    applied to this process directly."""
    if any(field.name == "signals_to_handle" for field in fields(LaunchConfig)):
        return list(arguments)
    for argument in arguments:
        if argument.startswith(_SIGNALS):
            handle_only(argument.removeprefix(_SIGNALS).split(","))
    return [argument for argument in arguments if not argument.startswith(_SIGNALS)]


def handle_only(names: Collection[str]) -> None:
    """Have torchrun handle only the signals `names`. Before 2.10, whenever it starts workers, it
    installs handlers for SIGTERM, SIGINT, SIGHUP and SIGQUIT that end all workers."""
    vars(worker_processes)["signal"] = _SignalModule({signal.Signals[name] for name in names})


class _SignalModule:
    """A replacement for the module `signal` that sets the handlers of only some signals."""

    def __init__(self, allowed: Collection[signal.Signals]) -> None:
        self._allowed = frozenset(allowed)

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        if number not in self._allowed:
            return signal.getsignal(number)
        return signal.signal(number, handler)
