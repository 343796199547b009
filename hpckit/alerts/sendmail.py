"""Sends e-mail by the program sendmail, or one with its interface (Postfix, Exim, msmtp,
nullmailer)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from hpckit.alerts.alert_errors import AlertRejectedError, AlertUnavailableError
from hpckit.config.spec import EmailSpec

TIMEOUT_S = 60.0
_MORE_FOLDERS = ("/usr/sbin", "/usr/lib")  # often not in the PATH of users
_PASSING = (69, 71, 73, 74, 75)
"""Statuses of sysexits.h after which another try may succeed: EX_UNAVAILABLE, EX_OSERR,
EX_CANTCREAT, EX_IOERR, EX_TEMPFAIL."""
_MOST_CHARACTERS = 200


def find_sendmail(spec: EmailSpec, env: Mapping[str, str]) -> str:
    """Returns the path of the program.

    Raises:
        AlertRejectedError: it is not installed.
    """
    folders = os.pathsep.join((env.get("PATH", os.defpath), *_MORE_FOLDERS))
    if (found := shutil.which(spec.program, path=folders)) is not None:
        return found
    raise AlertRejectedError(f"there is no program {spec.program}")


def send_mail(
    mail: bytes, spec: EmailSpec, env: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> None:
    """Passes an e-mail with its headers to the program. No shell is involved.

    Raises:
        AlertUnavailableError, AlertRejectedError: the program did not accept it.
    """
    options = ["-f", spec.sender] if spec.sender is not None else []
    command = [find_sendmail(spec, env), "-i", *options, *spec.to]
    try:
        done = subprocess.run(
            command,
            input=mail,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
            check=False,
            start_new_session=True,  # a signal to this process's group is not for it
        )
    except subprocess.TimeoutExpired:
        what = f"{spec.program} has not ended within {timeout_s:g} s"
        raise AlertUnavailableError(what) from None
    except OSError as error:
        raise AlertRejectedError(f"cannot run {spec.program}: {error.strerror}") from None
    if done.returncode == 0:
        return
    what = f"{spec.program} ended with status {done.returncode}{_said(done.stderr)}"
    if done.returncode in _PASSING or done.returncode < 0:
        raise AlertUnavailableError(what)
    raise AlertRejectedError(what)


def _said(errors: bytes) -> str:
    line = next(iter(errors.decode(errors="replace").strip().splitlines()), "")
    line = "".join(letter for letter in line if letter.isprintable())[:_MOST_CHARACTERS]
    return f": {line}" if line else ""
