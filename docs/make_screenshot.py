"""Make docs/dashboard.svg, the picture of the first screen: trains a shipped pipeline, and looks at
it on its way.

    python docs/make_screenshot.py                      # pipelines/gaussian2d.toml, on this machine
    python docs/make_screenshot.py FILE --at 0.6 --set run.max_iters=400

Run it while the machine does nothing else: the picture shows the times of a real training.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hookflow.events.commands import send
from hookflow.events.rundir import RunDir, all_runs
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.feed import LogFollower

DOCS = Path(__file__).resolve().parent
PICTURE = DOCS / "dashboard.svg"
PIPELINE = DOCS.parent / "pipelines" / "gaussian2d.toml"
SIZE = (120, 40)

MIN_SECONDS = 3.0
"""Seconds that the dashboard is open, so that it has looked at the process and the machine."""

MAX_SECONDS = 1800.0
"""Seconds for the training to come to its moment."""


def start_training(pipeline: Path, overrides: list[str], folder: Path) -> RunDir:
    """Start a training whose run lies in a folder, and return it."""
    command = [
        sys.executable,
        "-m",
        "hookflow",
        "run",
        str(pipeline),
        "--detach",
        f"--dir={folder}",
    ]
    command += [f"--set={override}" for override in overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (run,) = all_runs(folder)
    return run


def wait_until(run: RunDir, share: float) -> None:
    """Wait until so much of a training is done.

    Raises SystemExit where it ends before, or takes too long.
    """
    live = LogFollower(run)
    until = time.monotonic() + MAX_SECONDS
    while time.monotonic() < until:
        live.read_all()
        state = live.state
        if state.end is not None:
            raise SystemExit(
                f"the training has ended: {state.end['reason'] or state.end['status']}"
            )
        if state.total_iters and state.it >= share * state.total_iters:
            return
        time.sleep(0.2)
    raise SystemExit(f"the training has not come so far in {MAX_SECONDS:.0f} s")


async def take_picture(run: RunDir) -> str:
    """Return the first screen of a run as SVG."""
    app = MonitorApp(run)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(MIN_SECONDS)
        return app.export_screenshot(title="hookflow watch")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pipeline", nargs="?", type=Path, default=PIPELINE)
    parser.add_argument(
        "--at",
        type=float,
        default=0.6,
        metavar="SHARE",
        help="the share that is done by then (0.6)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as of hookflow run"
    )
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = start_training(options.pipeline, options.set, Path(folder) / "runs")
        try:
            wait_until(run, options.at)
            picture = asyncio.run(take_picture(run))
        finally:
            if run.life() == "alive":
                send(run, "stop")
                while run.life() == "alive":
                    time.sleep(0.2)
    options.out.write_text(picture, "utf-8")
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
