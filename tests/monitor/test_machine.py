"""Machines without what most have: a user without a name or a home folder,
and GPUs whose drivers say little.
"""

import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pynvml
import pytest

from hookflow.events.commands import send
from hookflow.events.rundir import user_name
from hookflow.monitor import feed, settings
from hookflow.monitor import recording as recording_module
from hookflow.monitor.feed import LogFollower
from hookflow.monitor.process_watch import GpuState, MachineSensor, MachineState
from hookflow.monitor.recording import Recording
from hookflow.monitor.widgets.system_facts import load_lines
from tests.conftest import NewRun
from tests.monitor.fake_run import make


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without an entry in the passwd file and without HOME, as a container has."""

    def unknown(uid: int) -> NoReturn:
        raise KeyError(f"uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in (
        "HOME",
        "LOGNAME",
        "USER",
        "LNAME",
        "USERNAME",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_name_sends_commands_and_has_no_settings(new_run: NewRun) -> None:
    run = new_run()
    send(run, "stop")
    assert f'"by":"{os.getuid()}"' in run.commands.read_text()
    assert user_name() == str(os.getuid())
    preferences = settings.load({})
    assert preferences.path is None
    preferences.remember("theme", "light")


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_home_folder_reads_a_log_without_keeping_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "SNAPSHOT_STRIDE_BYTES", 1 << 13)
    monkeypatch.setattr(recording_module, "SNAPSHOT_STRIDE_BYTES", 1 << 13)
    run = make(tmp_path / "runs", upto=90)
    live = LogFollower(run, kept=True)
    live.read_all()
    recording = Recording(run)
    recording.seek(recording.last)
    assert recording.state.it == live.state.it > 0


def answer_as(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> GpuState:
    """Return the look at the only GPU, whose driver has these answers and an
    error for every other question.
    """

    def ask(name: str) -> Any:
        def question(*about: Any) -> Any:
            if name in answers:
                return answers[name]
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        return question

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1)
    for name in ("HandleByIndex", "MemoryInfo", "UtilizationRates", "Temperature", "PowerUsage"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", ask(name))
    (gpu,) = MachineSensor().look().gpus
    return gpu


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (
            {
                "HandleByIndex": 7,
                "MemoryInfo": SimpleNamespace(used=1, total=2),
                "UtilizationRates": SimpleNamespace(gpu=93),
                "Temperature": 61,
                "PowerUsage": 412_000,
            },
            GpuState(0, 93, 1, 2, 61, 412.0),
        ),
        (
            {"HandleByIndex": 7, "Temperature": 0, "UtilizationRates": SimpleNamespace(gpu=93)},
            GpuState(0, 93, None, None, 0, None),
        ),
        ({"HandleByIndex": 7}, GpuState(0, None, None, None, None, None)),
        ({}, GpuState(0, None, None, None, None, None)),
    ],
    ids=["all", "no power and no memory", "nothing", "lost"],
)
def test_a_figure_that_a_driver_does_not_say_is_not_shown_as_another(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], expected: GpuState
) -> None:
    gpu = answer_as(monkeypatch, **answers)
    assert gpu == expected
    line = next(load_lines(MachineState(38.0, 3.1, 22.0, 2.8, (gpu,)))).plain
    assert "GPU 0" in line
    assert ("93 %" in line) == (gpu.busy is not None)
    assert ("°C" in line) == (gpu.degrees is not None)
    assert (" W" in line) == (gpu.watts is not None)
    assert ("GB" in line) == (gpu.used is not None)
