"""The commands `cldnet serve` and `cldnet studio`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from cldnet.cli.models import importing
from cldnet.cli.show import say, shown

_Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any that is free.")]
_Host = Annotated[
    str, typer.Option(help="Address to listen on. Others than this machine's own need a token of your choice.")
]
_Token = Annotated[
    str | None,
    typer.Option(envvar="CLDNET_TOKEN", help="What requests have to bear. (default: a new one, which is printed)"),
]
_NoToken = Annotated[
    bool, typer.Option("--no-token", help="Let every program of this machine use the service; only on 127.0.0.1.")
]
_JSONLog = Annotated[bool, typer.Option("--json-log", help="Log lines of JSON.")]


def serve_command(
    model: Annotated[Path, typer.Argument(help="The model's file, as written by clf.save or `cldnet learn`.")],
    port: _Port = 8321,
    host: _Host = "127.0.0.1",
    token: _Token = None,
    no_token: _NoToken = False,
    json_log: _JSONLog = False,
) -> None:
    """Serve a model over HTTP: predict, learn, forget, undo. Lessons are answered when they are safe on disk.

    No other process can change the file meanwhile. Stop with Ctrl-C; a lesson under way is finished. See docs/serve.md.
    """
    _run(model, host, port, token, no_token, json_log=json_log)


def studio_command(
    model: Annotated[Path, typer.Argument(help="The model's file. It is created by the first lesson.")] = Path(
        "studio.cldnet"
    ),
    port: _Port = 8321,
    token: _Token = None,
    json_log: _JSONLog = False,
    browse: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open the page.")] = True,
) -> None:
    """Open a page in the browser to teach a model with photos or sentences, ask it, and take lessons back.

    The page and the service behind it are on this machine only. Photos that you teach are not kept.
    """
    _run(model, "127.0.0.1", port, token, False, json_log=json_log, studio=True, browse=browse)


def _run(
    model: Path, host: str, port: int, token: str | None, no_token: bool, browse: bool = False, **how: Any
) -> None:
    if token is not None and no_token:
        raise ValueError("There is a token, and --no-token: leave one of them out (CLDNET_TOKEN counts as well).")
    own_choice = no_token or token is not None
    with importing():
        try:
            from cldnet.serve.guard import LOOPBACK
            from cldnet.serve.run import run_service
        except ImportError as error:
            raise ImportError(
                f'Serving a model needs the extra "serve" ({error.name} is missing): pip install ".[serve]" in a clone of '
                "CLDNet."
            ) from error
    if not own_choice and host in LOOPBACK:
        token = secrets.token_urlsafe(16)

    def started(url: str) -> None:
        page = f"{url}/#token={token}" if token else f"{url}/"
        if how.get("studio"):
            say(f"studio  {page}\n model  {shown(model)}\nStop with Ctrl-C.")
        else:
            say(f"service  {url}, described at {url}/docs\n  model  {shown(model)}")
            if not own_choice:
                say(f"  token  {token}")
        if browse:
            import webbrowser

            webbrowser.open(page)

    run_service(model, host=host, port=port, token=token, on_start=started, **how)
