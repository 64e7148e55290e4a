"""`git theta daemon …`: the resident process, for people and scripts. Git itself needs none of these commands."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from theta_daemon.cli.exits import DONE, EPILOGUE, FAILED
from theta_daemon.cli.output import say, say_json, shown, size, table

app = typer.Typer(
    name="daemon",
    help="The resident that serves git. It starts by itself where theta.daemon allows it.",
    epilog=EPILOGUE,
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Seconds = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait.")]


@app.command(epilog=EPILOGUE)
def start(*, timeout: Seconds = 60.0) -> int:
    """Start the daemon and wait until it serves; one that serves already is a success."""
    from theta_daemon.server import admin

    daemon = admin.start(os.environb, timeout)
    say(f"serving, process {daemon.report.get('pid')}")
    return DONE


@app.command(epilog=EPILOGUE)
def stop(
    *,
    now: Annotated[
        bool, typer.Option("--now", help="End its sessions too; git commands that wait for it fail.")
    ] = False,
    timeout: Seconds = 60.0,
) -> int:
    """Ask every daemon of this user to end and wait until it has; none is a success."""
    from theta_daemon.server import admin

    stopped = admin.stop(os.environb, now=now, timeout_seconds=timeout)
    say("no daemon was running" if stopped == 0 else f"stopped {stopped}")
    return DONE


@app.command(epilog=EPILOGUE)
def restart(*, timeout: Seconds = 60.0) -> int:
    """Stop, then start."""
    from theta_daemon.server import admin

    daemon = admin.restart(os.environb, timeout)
    say(f"serving, process {daemon.report.get('pid')}")
    return DONE


@app.command(epilog=f"{EPILOGUE} Here 1 also means that no daemon runs.")
def status(*, json: Json = False) -> int:
    """Uptime, sessions, memory, and each cache's size, hits and misses. Exit status 1 when none runs."""
    from theta_daemon.server import admin

    daemons = admin.status(os.environb)
    if json:
        say_json([{"socket": os.fsdecode(one.place.socket), "current": one.current, **one.report} for one in daemons])
        return DONE if daemons else FAILED
    if not daemons:
        say("no daemon is running")
        return FAILED
    for one in daemons:
        report = dict(one.report)
        host = report.pop("host", {})
        note = "" if one.current else " (of another build: git does not use it)"
        say(f"daemon {report.pop('pid', '?')}{note} at {shown(one.place.socket)}")
        table(("what", "value"), [*_rows(report), *_rows(host)])
    return DONE


@app.command(epilog=EPILOGUE)
def logs() -> int:
    """Print the daemon's log, also that of one that has ended."""
    from theta_daemon.server import admin

    for text in admin.logs(os.environb).splitlines():
        say(shown(text))
    return DONE


def _rows(report: Any, prefix: str = "") -> list[tuple[str, str]]:
    """A nested report as lines."""
    if not isinstance(report, dict):
        return [(prefix, _value(prefix, report))]
    rows: list[tuple[str, str]] = []
    for key, value in report.items():
        rows += _rows(value, f"{prefix}.{key}" if prefix else str(key))
    return rows


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return shown(str(value))
    if name.endswith("seconds"):
        return _duration(value)
    return size(int(value)) if "bytes" in name else f"{value:,}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"
