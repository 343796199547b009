"""The file of a token is this user's alone, or is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpckit.serve.token_file import TokenFileError, new_token, read_token


def test_a_token_is_made_once_and_kept(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = read_token(tmp_path / "hpckit" / "token")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "hpckit" / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "hpckit").stat().st_mode) == 0o700
    assert len(made) >= 40
    assert read_token(tmp_path / "hpckit" / "token") == made
    assert len({new_token(), new_token(), made}) == 3


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("0123456789abcdef\n", 0o640, "other users"),
        ("short\n", 0o600, "at least 16"),
        ("two words of some length\n", 0o600, "without spaces"),
        ("0123456789abcdef\nsecond\n", 0o600, "one line"),
        ("0123456789abcdeé\n", 0o600, "ASCII"),
    ],
)
def test_a_file_that_holds_no_secret_is_refused(
    text: str, mode: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(TokenFileError, match=words) as raised:
        read_token(path)
    assert text.strip() not in str(raised.value)


def test_a_link_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(TokenFileError, match="symbolic"):
        read_token(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(TokenFileError, match="regular"):
        read_token(tmp_path / "pipe")
