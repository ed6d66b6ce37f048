"""`hookflow export`: the report in one file that opens anywhere,
and event files for TensorBoard.
"""

import json
import math
import re
from collections import Counter
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hookflow.errors import UserError
from hookflow.events.records import make_stamped_record
from hookflow.events.rundir import RunDir
from hookflow.pipeline import registry
from hookflow.png import encode_png
from hookflow.report.contents import read_report
from hookflow.report.curves import MAX_CHARTS
from hookflow.report.run_page import render_report
from hookflow.service.runs import scalars
from tests.cli.conftest import called, invoke
from tests.conftest import records
from tests.monitor.fake_run import (
    BEGAN,
    PIPELINE,
    append,
    end,
    gone,
    make,
    make_ranks,
    make_several,
    record,
)
from tests.support.golden_files import check_golden
from tests.support.tensorboard_files import accumulated

VOID = ("meta", "input", "br")
HOSTILE = "</script><b onclick='x'>&\u202eevil\x1b[31m"


class Page(HTMLParser):
    """Parses a page strictly: every element is closed in its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.addresses += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "data")
        ]
        assert not [name for name, _ in attrs if name.startswith("on")], (
            "no handler in an attribute"
        )
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        (self.scripts if self._open[-1:] == ["script"] else self.texts).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.scripts[0]))


pytestmark = pytest.mark.usefixtures("here")


def finished(root: Path, **options: Any) -> RunDir:
    run = make(root / "runs", **options)
    run.pipeline.write_text(PIPELINE.format(seed=0, width=64, lr=0.1))
    run.sign(
        created=BEGAN, source="cifar.toml", overrides=["optimizer.args.lr=0.1"], hookflow="0.2"
    )
    return run


def log(run: RunDir, it: int, *, kind: str = "scalars", **fields: Any) -> None:
    append(run, [{**make_stamped_record(kind, it, 8, fields), "t": BEGAN + 90}])


def page_of(run: RunDir) -> Page:
    return Page(render_report(read_report(run)))


def test_the_data_of_a_report(tmp_path: Path) -> None:
    run = finished(tmp_path, upto=30)
    append(run, [end(it=190, ep=1, t=BEGAN + 9, seconds=9.0)])
    report = replace(read_report(run), made="now")
    lines = []
    for key, value in asdict(report).items():
        items = [value]
        if isinstance(value, list):
            items = value
        elif isinstance(value, dict):
            items = [*value.items()]
        lines += [key, *(f"  {json.dumps(item, ensure_ascii=False)}" for item in items)]
    check_golden("report.txt", "\n".join(lines) + "\n")


def test_runs_beside_each_other_are_one_page_too(tmp_path: Path) -> None:
    first, second, third = make_several(tmp_path / "runs", 3)
    (first.path / "environment.json").write_text(json.dumps({"git": {"commit": HOSTILE}}))
    first.notes.write_text(json.dumps({"tags": [HOSTILE], "note": HOSTILE}))
    log(second, 700, v={HOSTILE: 1.0})
    text = invoke("compare", first.id, second.id, third.id, "--format", "html", code=1)
    page = Page(text)
    assert "http" not in text.replace("http-equiv", "")
    assert page.addresses and all(address.startswith("#") for address in page.addresses)
    assert not page.elements["img"] and page.elements["script"] == 2
    for words in (
        f"A {first.id} B {second.id} C {third.id}",
        "optimizer.args.lr 0.1 0.05",
        "Δ to A",
        "backward 13.07 13.36 +0.289",
        f"cifar {third.id} ? lost",
    ):
        assert words in page.text
    assert [len(lines) for lines in page.data["curves"]] == [3, 3, 3, 3, 1], (
        "metrics and scalars, and the hostile one"
    )


def test_the_page_is_whole_and_asks_nobody(tmp_path: Path) -> None:
    run = finished(tmp_path)
    text = render_report(read_report(run))
    page = Page(text)
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text
    assert all(address.startswith("#") for address in page.addresses)
    assert page.elements["h1"] == page.elements["main"] == 1
    for words in (
        "best val accuracy 0.9365",
        "backward 46.0 %",
        "after_val_epoch",
        "No space left",
        'use = "net.py:Net"',
    ):
        assert words in page.text
    drawn = [re.findall(rf'class="{scale}">', text) for scale in ("linear", "log")]
    assert [len(each) for each in drawn] == [3, 3], "both scales are there without a script"
    assert [len(lines) for lines in page.data["curves"]] == [1, 2, 1]
    series = page.data["curves"][1][0]["points"]
    assert [series[0][0], series[-1][0]] == [10, 780]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(tmp_path: Path, scheme: str) -> None:
    """Every ink has a contrast of 4.5 at least on every ground: WCAG 2, level AA."""
    text = render_report(read_report(finished(tmp_path, upto=10)))
    blocks = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    inks = dict(re.findall(r"--([\w-]+): #([0-9a-f]{6});", blocks[0 if scheme == "light" else 1]))

    def luminance(colour: str) -> float:
        parts = (int(colour[k : k + 2], 16) / 255 for k in (0, 2, 4))
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for ground in ("page", "card", "warn-page", "bad-page", "going-page"):
        for ink in (
            "ink",
            "dim",
            "train",
            "val",
            "test",
            *"defgh",
            "good",
            "warn",
            "bad",
            "going",
            "link",
        ):
            if ground in ("page", "card") or ink in ("ink", "dim"):
                light, dark = sorted((luminance(inks[ground]), luminance(inks[ink])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (ground, ink)


def test_names_and_texts_of_users_stay_texts(tmp_path: Path) -> None:
    plain = page_of(finished(tmp_path / "plain"))
    run = finished(tmp_path / "hostile", name="<script>alert(1)<")
    for place in (*"<>&", "\"'"):
        run.pipeline.write_text(run.pipeline.read_text() + f"# {place}{HOSTILE}\n")
    log(run, 700, v={HOSTILE: 1.0})
    hostile = dict.fromkeys(("hook", "type", "text", "traceback"), HOSTILE)
    append(
        run,
        [
            record("message", source=HOSTILE, text=HOSTILE),
            record("error", action="ignore", **hostile),
        ],
    )
    run.sign(source=HOSTILE, host=HOSTILE)
    text = render_report(read_report(run))
    page = Page(text)
    assert page.elements["script"] == plain.elements["script"] == 2
    assert page.elements["b"] == plain.elements["b"] + 3, "of a chart and of two troubles"
    assert "<script>alert(1)< " in page.text
    assert "</script><b onclick='x'>&·evil·[31m" in page.text
    assert "\u202e" not in text
    assert "\x1b" not in text


def test_the_graph_and_the_times_come_before_the_curves(tmp_path: Path) -> None:
    text = render_report(read_report(finished(tmp_path)))
    places = [
        text.index(f'<section id="{anchor}">')
        for anchor in ("metrics", "time", "the-graph-of-hooks", "curves")
    ]
    assert places == sorted(places)


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    run = finished(tmp_path, upto=60)
    cause = {"at": "net.py:31", "causes": "caused by KeyError: 'x'\nat net.py:30: x[y]"}
    where = {
        "hook": "ema",
        "point": "after_train_iter",
        "traceback": "Traceback:\n  net.py\nValueError: too <big>",
    }
    append(run, [record("error", it=196, ep=2, text="too <big>", **where, **cause)])
    append(run, [end(it=196, ep=2, status="failed", exit=1, reason="ValueError: too <big>")])
    text = render_report(read_report(run))
    head = Page(text[: text.index("<nav")] + "</main></body></html>").text
    assert 'failed: hook "ema" at after_train_iter, iteration 196: ValueError: too <big>' in head
    for words in (
        "✗ failed",
        "at net.py:31",
        "caused by KeyError: 'x'",
        "Traceback: net.py ValueError",
    ):
        assert words in head


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    run = finished(tmp_path)
    for it, value in ((782, math.inf), (784, math.nan)):
        log(run, it, v={"loss": value, "broken": math.nan})
    page = page_of(run)
    assert "Not finite at the end: loss NaN." in page.text
    assert page.data["curves"][1][0]["points"][-2:] == [[782, "inf"], [784, "NaN"]]
    assert "cannot be drawn" in page.text, "a curve without a finite value"
    log(run, 784, v={"huge": 1e308})
    log(run, 784, v={"huge": -1e308})
    assert "cannot be drawn" in page_of(run).text


def test_a_run_over_ranks(tmp_path: Path) -> None:
    text = page_of(make_ranks(tmp_path / "runs", 2, late={1: 0.3})).text
    assert "rank 1" in text


def test_a_resumed_run(tmp_path: Path) -> None:
    run = finished(tmp_path)
    again = {
        **records(run, "run")[0],
        "t": BEGAN + 200,
        "it": 392,
        "ep": 4,
        "resumed_from": "it00000392",
    }
    append(
        run,
        [again, {**make_stamped_record("scalars", 400, 4, {"v": {"loss": 0.5}}), "t": BEGAN + 201}],
    )
    append(run, [end(t=BEGAN + 202, it=400, ep=4)])
    page = page_of(run)
    assert "attempt 2, since 2026-09-21 14:16:40" in page.text
    assert "from it00000392, iteration 392 to 400" in page.text
    assert page.data["x"] == [0, 400]
    assert "↻" in page.text


def test_a_live_run_says_that_it_is(tmp_path: Path) -> None:
    run = finished(tmp_path, upto=60)
    run.sign_process()
    assert "This run has not ended: the report is of 2026-09-21 14:13:" in page_of(run).text
    assert "has not ended" not in page_of(gone(run)).text


def test_a_long_run_with_many_scalars_fits_into_a_mail(tmp_path: Path) -> None:
    run = finished(tmp_path, upto=3)
    names = [f"norm/layer{k}" for k in range(60)]
    for it in range(1, 3000):
        record = make_stamped_record(
            "scalars", it, 0, {"v": dict.fromkeys(names, it**0.5 + it % 7)}
        )
        append(run, [{**record, "t": BEGAN + it}])
    text = render_report(read_report(run))
    assert len(text.encode()) < 2 << 20
    assert Page(text).elements["figure"] == MAX_CHARTS
    assert "20 more have no chart here: norm/layer40, " in text
    low, high = Page(text).data["curves"][0][0]["points"][5][2:]
    assert low < high, "a band"


def test_the_file_chooses_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(tmp_path, upto=20)
    assert invoke("export", "cifar").startswith("iteration,epoch,time,name,value\n")
    assert invoke("export", "cifar", "--format", "html").startswith("<!DOCTYPE html>")
    for out, begins in (
        ("r.html", "<!DOCTYPE"),
        ("r.jsonl", '{"iteration"'),
        ("r", "iteration,epoch"),
    ):
        assert invoke("export", str(run.path), "--out", out) == ""
        assert Path(out).read_text().startswith(begins)
    with pytest.raises(
        UserError, match=re.escape('no format is called "json"\n    did you mean "jsonl"?; or')
    ):
        invoke("export", "cifar", "--out", "r.json")
    with pytest.raises(UserError, match=re.escape("name it with --out")):
        invoke("export", "cifar", "--format", "tensorboard")
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs the package tensorboard"):
        invoke("export", "cifar", "--format", "tensorboard", "--out", "tb")


def test_tensorboard_has_what_the_run_has_logged(tmp_path: Path) -> None:
    import numpy as np

    run = finished(tmp_path)
    run.images.mkdir()
    (run.images / "a.png").write_bytes(encode_png(np.zeros((2, 3, 3), np.uint8)))
    (tmp_path / "private.png").write_bytes(b"private")
    for name, path in (
        ("kept", "images/a.png"),
        ("gone", "images/b.png"),
        ("outside", "../../../private.png"),
    ):
        log(
            run,
            784,
            kind="image",
            name=name,
            hook="task",
            path=path,
            width=3,
            height=2,
            caption="",
            figure=False,
        )
    log(run, 784, kind="text", name="words", hook="task", text="one two")
    log(
        run,
        784,
        kind="histogram",
        name="weights",
        hook="task",
        edges=[0.0, 1.0, 2.0],
        counts=[3, 4],
    )
    left_out = "2 images left out: no such file in the run directory\n"
    assert called("export", "cifar", "--format", "tensorboard", "--out", "tb") == (0, left_out)
    result = accumulated(Path("tb"))
    tags = result.Tags()
    rows = {
        (event.step, tag): event.value for tag in tags["scalars"] for event in result.Scalars(tag)
    }
    assert rows == {(row.iter, row.name): pytest.approx(row.value, 1e-6) for row in scalars(run)}
    assert tags["images"] == ["kept"]
    assert result.Histograms("weights")[0].histogram_value.num == 7
    assert {"words/text_summary", "pipeline/text_summary"} <= {*tags["tensors"]}
    with pytest.raises(UserError, match="has event files already"):
        invoke("export", "cifar", "--format", "tensorboard", "--out", "tb")
