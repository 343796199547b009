"""`hpckit serve`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import ROOT, complete_run, submitted_run

if TYPE_CHECKING:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.serve.run_catalog import RunCatalog

HOST = "127.0.0.1"


def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Run directories, names of runs below ./runs, or folders with run directories; "
            "by default ./runs.",
            autocompletion=complete_run,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen at; another one than the loopback is open to all "
            "who have the token."
        ),
    ] = HOST,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any free one.")
    ] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token, of mode 0600, which is made if it does not exist. The "
            "address stays the same then, and the token is not printed."
        ),
    ] = None,
    every: Annotated[
        float, typer.Option(min=1.0, help="Seconds between two refreshes of a page.")
    ] = 5.0,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the pages as files to this folder, and serve nothing."
        ),
    ] = None,
) -> None:
    """Show runs in a browser: states, reports, forks, nodes, checkpoints. Changes nothing.

    Example: hpckit serve runs/ --port 8642

    It prints an address with a token, which a browser keeps as a cookie. Without the token it
    answers nothing but that one is needed, also on this machine, as other users can connect to its
    ports. It ends by Ctrl-C.

    A run is read when its page is opened, and its records are not copied. Runs that appear in a
    folder later are shown, too. /runs.json has what hpckit status --json prints.

    With --export, the same pages are written as HTML files with relative links, without a token,
    scripts and forms.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.serve.site_export import ForeignFolderError
    from hpckit.serve.token_file import TokenFileError

    with reported_errors():
        out, catalog = CommandOutput(False), _catalog(runs or [ROOT], is_default=not runs)
        try:
            if export is not None:
                _refuse_options_of_a_server(host, port, token_file)
                _export(catalog, export, out)
            else:
                _serve(catalog, host, port, token_file, every, out)
        except (ForeignFolderError, TokenFileError) as error:
            raise CommandError(str(error)) from None


def _catalog(paths: Sequence[Path], *, is_default: bool) -> RunCatalog:
    """Return the runs that the user has named.

    Raises:
        FileNotFoundError: there is no such run or folder.
    """
    from hpckit.serve.run_catalog import RunCatalog

    found, roots = [], []
    for path in paths:
        is_root = path.is_dir() and not (path / "submissions").is_dir()
        is_inside = any((folder / "submissions").is_dir() for folder in path.resolve().parents)
        if is_default or (is_root and not is_inside):
            roots.append(path.resolve())
        else:
            found.append(submitted_run(path))
    return RunCatalog(found, roots)


def _refuse_options_of_a_server(host: str, port: int, token_file: Path | None) -> None:
    given = {"--host": host != HOST, "--port": port != 0, "--token-file": token_file is not None}
    if names := [name for name, is_given in given.items() if is_given]:
        raise CommandError(
            f"{' and '.join(names)}: --export writes files and serves nothing; leave out either"
        )


def _export(catalog: RunCatalog, folder: Path, out: CommandOutput) -> None:
    from hpckit.cli.common.command_output import count
    from hpckit.cli.logs import find_first_error
    from hpckit.cli.why import budget_of_run
    from hpckit.serve.run_reader import RunReader
    from hpckit.serve.site import RunSite
    from hpckit.serve.site_export import export_site

    site = RunSite(catalog, RunReader(budget_of_run, 3600.0), find_first_error, None)
    written = export_site(site, folder)
    out.fact("pages", f"{count(written, 'file')} in {folder.resolve()}")


def _serve(
    catalog: RunCatalog,
    host: str,
    port: int,
    token_file: Path | None,
    every: float,
    out: CommandOutput,
) -> None:
    from hpckit.cli.common.command_output import count
    from hpckit.cli.common.silenced_warnings import silenced_warnings
    from hpckit.cli.logs import find_first_error
    from hpckit.cli.why import budget_of_run
    from hpckit.distribution import NAME
    from hpckit.serve.run_reader import RunReader
    from hpckit.serve.site import RunSite
    from hpckit.serve.token_file import new_token, read_token

    try:
        from hpckit.serve import page_server
    except ModuleNotFoundError as error:
        raise CommandError(
            f"hpckit serve needs {error.name}, which is of the extra serve: "
            f"pip install '{NAME}[launcher,serve]', with the wheel's path for the name"
        ) from None
    token = new_token() if token_file is None else read_token(token_file)
    try:
        listener = page_server.listen(host, port)
    except OSError as error:
        raise CommandError(f"cannot listen at {host}, port {port}: {error.strerror}") from None
    with listener:
        access = page_server.access_of(listener, host, token)
        site = RunSite(catalog, RunReader(budget_of_run, every), find_first_error, every)
        address, port = page_server.address_of(listener), listener.getsockname()[1]
        out.fact("runs", count(len(catalog.read().runs), "run"))
        shown = f"{address}?token={token}" if token_file is None else address
        out.fact("address", shown)
        if token_file is not None:
            out.fact("token", f"in {token_file}: {address}?token=TOKEN")
        if not access.is_loopback_only:
            out.note(
                f"warning: {host} is reached from other machines, and HTTP is not encrypted: who "
                "has the token, or can read the network, sees all that these pages show"
            )
        elif "SSH_CONNECTION" in os.environ:
            target = address.removeprefix("http://").rstrip("/")
            out.fact("from afar", f"ssh -L {port}:{target} {os.uname().nodename}")
        with silenced_warnings():
            page_server.serve(page_server.server_of(site, access), listener)
    _end_readers()


def _end_readers() -> None:
    """End this process if a page is still being made, as from a file system that does not answer:
    it changes nothing, and Python would wait for its thread."""
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
