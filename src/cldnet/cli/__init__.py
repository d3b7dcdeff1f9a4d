"""The command line. The modules of this package define the commands; `app` joins them."""

from __future__ import annotations

import atexit
import gc
import signal
import sys
import time
from typing import Annotated

import typer
from rich.console import Console

from cldnet.cli import bench, datasets, learn, lessons, models, results, run, serve, tune
from cldnet.cli.show import printable
from cldnet.distributed.environment import World
from cldnet.version import __version__

__all__ = ["app", "main"]

#: Seconds that another rank waits for the first one before it says what is wrong.
_PATIENCE = 5.0


def _show_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"cldnet {__version__}", highlight=False)
        raise typer.Exit


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command("learn")(learn.learn_command)
app.command("predict")(learn.predict_command)
app.command("eval")(learn.eval_command)
app.command("inspect")(models.inspect_command)
app.command("forget")(learn.forget_command)
app.command("merge")(models.merge_command)
app.command("lessons")(lessons.lessons_command)
app.command("undo")(lessons.undo_command)
app.command("rename")(lessons.rename_command)
app.command("join")(lessons.join_command)
app.command("extend")(lessons.extend_command)
app.command("export")(models.export_command)
app.command("serve")(serve.serve_command)
app.command("studio")(serve.studio_command)
app.command()(bench.demo)
app.command("run")(run.run_command)
app.command("bench")(bench.bench_command)
app.command("tune")(tune.tune_command)
app.command("table")(results.table_command)
app.command("report")(results.report_command)
app.command("audit")(models.audit_command)
app.add_typer(datasets.app, name="data")
app.command()(run.methods)
app.command()(run.streams)


@app.callback()
def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    """Learn new classes forever: keep no data, never grow, never forget."""
    if World.from_environment().several and context.invoked_subcommand not in ("run", None):
        raise ValueError(f"`cldnet {context.invoked_subcommand}` is one process: start it without torchrun.")


def main() -> None:
    """Run the command line. Errors that a user can fix are printed in one sentence, without a traceback."""
    atexit.register(
        gc.freeze
    )  # or Python looks through all of torch's objects for garbage at the end, for half a second
    try:
        app()
        return
    except (ValueError, OSError, ImportError) as error:
        said = str(error)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        said = (
            "There is not enough memory for this method on inputs of this size. Use smaller photos, such as "
            "folder:PATH,size=32, or the exact solver, which needs less than methods with projectors."
        )
    world = World.from_environment()
    if world.several and not world.first:
        # The first rank says what is wrong, and torchrun then ends the others.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_PATIENCE)
        said = f"{said} (rank {world.rank})"
    Console(stderr=True).print(printable(f"Error: {said}"), style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)
