"""`hookflow graph` and `why`: a pipeline drawn in each format,
and what puts one hook before another, in words.
"""

import json
import re
import shlex
from pathlib import Path

import pytest

from hookflow.events.packing import bin_of
from hookflow.graph.plan import Plan
from hookflow.monitor.feed import read_plan
from tests.cli.conftest import SMALL, invoke, refused
from tests.conftest import TOY, NewRun, hookflow_here
from tests.monitor.fake_run import BEGAN, append, make_several, record
from tests.support.golden_files import check_cases, check_golden

ROOT = Path(__file__).parents[2]
BEGINS = {
    "text": "toy: 8 hooks at ",
    "mermaid": '---\ntitle: "toy: 8 hooks at ',
    "dot": "digraph plan {\n",
    "svg": "<svg xmlns=",
    "html": "<!DOCTYPE html>\n",
    "json": "{",
}


def graph(*arguments: str, pipeline: str = str(TOY), columns: int = 80) -> str:
    return invoke("graph", pipeline, *arguments, columns=columns)


def without_lines(drawn: str) -> str:
    """Return a drawing without the numbers of lines:
    a comment in the pipeline file must change nothing here.
    """
    return re.sub(r"(cifar\.toml):\d+", r"\1:LINE", drawn)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_shipped_pipelines_plan_is_golden(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    drawn = graph(pipeline="pipelines/cifar.toml", columns=columns)
    check_golden(
        "plan_cifar.txt" if columns == 80 else f"plan_cifar-{columns}.txt", without_lines(drawn)
    )


def test_the_picture_in_the_documentation_is_what_the_command_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    drawn = graph("--format", "svg", pipeline="pipelines/cifar.toml")
    again = "hookflow graph pipelines/cifar.toml --out docs/graph-cifar.svg draws it anew"
    assert without_lines(drawn) == without_lines(Path("docs/graph-cifar.svg").read_text("utf-8")), (
        again
    )


def test_some_points_and_hooks_are_drawn_as_the_options_say() -> None:
    title, *both = graph("--point", "after_val", "--point", "after_train_iter").split("\n")
    assert title.endswith("hooks at 2 points")
    assert {line.split()[0] for line in both if line} >= {"after_train_iter", "after_val"}
    assert sum("leaves around_val" in line for line in both) == 1
    lines = graph("--hook", "log").split("\n")
    assert lines[0].startswith("toy: log at 1 point, ")
    assert any("throughput" in line for line in lines)
    assert not any("clip" in line for line in lines)
    lines = graph("--hook", "ema", "--point", "after_val").split("\n")
    assert lines[0].startswith("toy: ema at after_val, ")
    assert graph("--without", "log").startswith("toy: 7 hooks at ")
    assert graph("--only", "log", "--only", "throughput").startswith("toy: 2 hooks at ")
    assert graph("--shuffle", "3").split("\n")[0].endswith(" points, shuffled (seed 3)")


CHAIN = """
[run]
name = "chain"
max_iters = 1
default_hooks = false
[model]
use = "torch.nn:Identity"
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "circle"
[hooks]
a = { use = "builtins:print", points = ["after_train_iter"], writes = ["mine"] }
b = { use = "builtins:print", points = ["after_train_iter"], reads = ["mine"] }
c.use = "builtins:print"
c.points = ["after_train_iter", "after_run"]
c.after = ["b"]
c.writes = ["yours"]
d.use = "builtins:print"
d.points = ["after_train_iter", "after_run"]
d.after = ["c"]
d.reads = ["yours.part"]
e = { use = "builtins:print", points = ["after_run"] }
"""


@pytest.mark.parametrize(
    ("options", "hooks", "edges"),
    [
        ("--ancestors c", {"a", "b", "c"}, {"ab", "bc"}),
        ("--descendants b", {"b", "c", "d"}, {"bc", "cd"}),
        ("--ancestors c --descendants b", {"b", "c"}, {"bc"}),
        ("--ancestors d --point after_run", {"c", "d"}, {"cd"}),
        ("--slot mine", {"a", "b"}, {"ab"}),
        ("--slot yours", {"c", "d"}, {"cd"}),
        ("--slot yours.part --slot mine", {"a", "b", "c", "d"}, {"ab", "bc", "cd"}),
        ("--kind flow", {"a", "b"}, {"ab"}),
        ("--kind file", {"b", "c", "d"}, {"bc", "cd"}),
        ("--kind file --hook b", {"b", "c"}, {"bc"}),
    ],
)
def test_filters_leave_what_leads_to_a_hook_or_touches_a_slot(
    options: str, hooks: set[str], edges: set[str], tmp_path: Path
) -> None:
    file = tmp_path / "chain.toml"
    file.write_text(CHAIN)
    part = json.loads(graph(*options.split(), "--format", "json", pipeline=str(file)))
    assert {hook["name"] for hook in part["hooks"]} == hooks
    assert {edge["first"] + edge["then"] for edge in part["edges"]} == edges
    assert {binding["hook"] for binding in part["bindings"]} == hooks


@pytest.mark.parametrize("options", ["--ancestors f", "--slot theirs", "--slot mine --kind class"])
def test_a_filter_that_names_nothing_or_leaves_nothing_is_refused(
    options: str, tmp_path: Path
) -> None:
    file = tmp_path / "chain.toml"
    file.write_text(CHAIN)
    refused("graph", str(file), *options.split())


def test_json_is_the_plan() -> None:
    whole = Plan.from_json(json.loads(graph("--format", "json")))
    assert [hook.name for hook in whole.hooks][:2] == ["accuracy", "clip"]
    part = json.loads(graph("--format", "json", "--point", "after_val"))
    assert [binding["id"] for binding in part["bindings"]] == [
        binding.id for binding in whole.at("after_val")
    ]
    assert [edge["then_id"] for edge in part["edges"]] == [
        edge.then_id for edge in whole.edges_at("after_val")
    ]


SUFFIXES = {
    "txt": "text",
    "mmd": "mermaid",
    "dot": "dot",
    "gv": "dot",
    "SVG": "svg",
    "html": "html",
    "json": "json",
}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_can_be_written_to_a_file_whose_name_says_it(
    suffix: str, tmp_path: Path
) -> None:
    out = tmp_path / f"drawn.{suffix}"
    assert graph("--out", str(out)) == ""
    drawn = out.read_text("utf-8")
    assert drawn.startswith(BEGINS[SUFFIXES[suffix]])
    assert drawn == graph("--format", SUFFIXES[suffix])


def test_of_a_run_it_is_the_plan_that_was_recorded(new_run: NewRun, tmp_path: Path) -> None:
    run_dir = new_run("hooks.ema.enabled=false")
    drawn = hookflow_here("graph", run_dir.id, cwd=tmp_path, code=0)
    assert drawn.stdout.startswith("toy: ")
    assert "ema" not in drawn.stdout
    assert hookflow_here("graph", "toy", cwd=tmp_path).stdout == drawn.stdout
    assert "its plan is recorded\n" in refused("graph", run_dir.path, "--shuffle", "3")


@pytest.mark.parametrize("device", [0, 50_000], ids=["host", "device"])
def test_of_a_run_that_has_trained_it_has_what_each_hook_took(new_run: NewRun, device: int) -> None:
    run_dir = new_run()
    took = record("frame", 1.79e9, 10, 0, iters=[10, 10**9, 0, 0, [0]])
    first = next(
        binding for binding in read_plan(run_dir).bindings if binding.point == "after_train_iter"
    )  # type: ignore[union-attr]
    fired = [1234, 123_400_000, 200_000, 100_000, [bin_of(100_000), 1234]]
    if device:
        took["device"] = {
            "iters": 4,
            "ns": 10**6,
            "phases": {},
            "hooks": {f"{first.id}": [4, 4 * device]},
        }
    never = next(
        binding.id for binding in read_plan(run_dir).bindings if binding.point == "before_val"
    )  # type: ignore[union-attr]
    append(
        run_dir,
        [{**took, "hooks": {f"{first.id}": fired, f"{never}": [2, 2000, 1000, 1000, [32, 2]]}}],
    )
    drawn = graph(pipeline=str(run_dir.path), columns=120)
    (line,) = (line for line in drawn.splitlines() if "1,234" in line)
    spent = r" +50\.0 µs" if device else ""
    assert re.search(rf"after_train_iter .* {first.hook} +1,234 +\d+ µs{spent} +12\.3", line)
    spent = "50.0 µs on the device, " if device else ""
    svg = graph("--format", "svg", pipeline=str(run_dir.path))
    assert re.search(rf"1,234 × \d+ µs, {spent}12.3 % of iterations", svg)
    assert re.search(r">2 × [\d.]+ µs<", svg), (
        "what fires elsewhere has no share, and no time on the device"
    )
    assert "fired" in drawn and "fired" not in graph(columns=120)
    assert ("device" in drawn) is bool(device)


@pytest.mark.parametrize("suffix", ["text", "svg", "html", "mermaid", "dot", "json"])
def test_of_a_run_the_hooks_that_are_off_say_so(tmp_path: Path, suffix: str) -> None:
    (run,) = make_several(tmp_path / "runs", 1, upto=40)
    answer = record("ack", BEGAN + 90, 1200, 4, id="1", sent=BEGAN, ok=True, note="")
    append(run, [{**answer, "cmd": "off", "args": ["ema"]}])
    drawn = graph("--format", suffix, pipeline=str(run.path), columns=120)
    words = "ema", "off since iteration 1,200"
    assert (
        all(word in drawn for word in words)
        if suffix != "json"
        else json.loads(drawn)["off"] == [["ema", 1200]]
    )
    append(run, [{**answer, "id": "2", "cmd": "on", "args": ["ema"]}])
    assert "since iteration" not in graph("--format", suffix, pipeline=str(run.path), columns=120)


PIPELINE = (
    SMALL
    + """\
[hooks.a]
use = "builtins:print"
points = ["before_train"]
reads = ["model"]
before = ["b"]
[hooks.b]
use = "builtins:print"
points = ["before_train"]
phase = "early"
before = ["c"]
[hooks.c]
use = "builtins:print"
points = ["before_train", "after_train", "after_run"]
writes = ["model"]
[hooks.d]
use = "builtins:print"
points = ["before_train", "after_train", "after_run"]
writes = ["model"]
[hooks.late]
use = "builtins:print"
points = ["after_train"]
phase = "late"
[hooks.off]
use = "ema"
enabled = false
"""
)


CIRCLE = (("f1", "one", "two"), ("f2", "two", "one"))


@pytest.fixture(autouse=True)
def pipeline(here: Path) -> None:
    """A pipeline, the only one in the current folder."""
    (here / "p.toml").write_text(PIPELINE)
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n")


def why(*arguments: str) -> str:
    return invoke("why", *arguments)


def answers(*questions: str) -> str:
    """Return what the command answers to each question, below it."""
    return "\n".join(f"$ why {question}\n{why(*shlex.split(question))}" for question in questions)


def test_why_asks_for_each_hook_of_a_group_that_meets_the_other() -> None:
    single = why("c", "d")
    with Path("p.toml").open("a") as file:
        file.write('\n[groups.pair]\nhooks = ["c", "d"]\n')
    assert why("c", "group:pair") == single, "not itself"
    assert why("group:pair", "d") == single
    assert "pair" in refused("why", "c", "group:pairs"), "the nearest name"


def add(*hooks: str) -> None:
    """Add hooks to the pipeline: the name, a point, and further keys of each."""
    with Path("p.toml").open("a") as file:
        for hook in hooks:
            name, points, *more = hook.split("; ")
            at = ", ".join(f'"{point}"' for point in points.split())
            file.write(
                "\n".join(
                    [f"[hooks.{name}]", 'use = "builtins:print"', f"points = [{at}]", *more, ""]
                )
            )


HOOKS = """\
class Around:
    writes = ("model",)

    def after_val(self): ...

    def around_val(self):
        yield

    def before_val(self): ...


class Reads:
    reads = ("model",)

    def after_val(self): ...
"""


def test_the_answers_are_golden(here: Path) -> None:
    """Edges with their sources, phases, halves, the file alone; what they overrule,
    and how to turn them.
    """
    text = answers("a c", "c a", "c d", "c d --point after_run", "c d --point before_run", "c late")
    Path("p.toml").write_text(PIPELINE.replace("max_iters = 10", "max_epochs = 10"))
    add(
        'saver; after_val; reads = ["average"]',
        'average; after_optimizer_step; writes = ["average"]',
    )
    text += answers("b late", "saver average", "saver average --set hooks.saver.every=2")
    halves = PIPELINE.replace("enabled = false\n", "").replace(
        '"after_train", "after_run"', '"after_val"'
    )
    Path("p.toml").write_text(halves.replace('writes = ["model"]', ""))
    text += answers("c off --point after_val")
    Path("p.toml").write_text(PIPELINE)
    flows = [
        f'{name}; after_run; reads = ["{read}"]; writes = ["{written}"]'
        for name, read, written in CIRCLE
    ]
    add(
        'm; after_run; after = ["c"]',
        'n; after_run; after = ["m"]',
        'o; after_run; writes = ["model"]',
        *flows,
    )
    text += answers(
        "c n",
        """c o --set 'hooks.c.reads=["model"]' --set hooks.c.writes=[] --point after_run""",
        "f1 f2",
    )
    add('w; after_val after_run; writes = ["rng"]')
    with Path("p.toml").open("a") as file:
        points = 'points = ["after_val", { at = "after_run", after = ["w"] }]'
        file.write(f'[hooks.r]\nuse = "builtins:print"\n{points}\nreads = ["rng"]\n')
    add(
        'x; before_train; before = ["d"]',
        'y; before_train; writes = ["lr"]',
        'z; before_train; reads = ["lr"]',
    )
    text += answers(
        "w r --point after_val", """y z --set 'hooks.y.before=["x"]' --set 'hooks.d.before=["z"]'"""
    )
    (here / "mine.py").write_text(HOOKS)
    with Path("p.toml").open("a") as file:
        file.write(
            '[hooks.around]\nuse = "./mine.py:Around"\n[hooks.s]\nuse = "./mine.py:Reads"\nafter ='
            ' ["around"]\n'
        )
        file.write('[points.after_dense]\nfollows = "after_train_iter"\n')
    add("dense; after_dense")
    text += answers("around s", "around around --point before_val", "dense late")
    check_golden("why.txt", text)
    line = (
        "at after_run, a cycle of flows, so none of them counts: f1 before f2 (writes two), f2"
        " before f1 (writes one)"
    )
    assert invoke("check", "p.toml", columns=200).count(line) == 1


def test_it_asks_of_another_pipeline_as_check_does() -> None:
    assert "an edge says so" in why(
        "c", "d", "--set", 'hooks.d.after=["c"]', "--point", "after_run"
    )
    assert why("a", "d", "--without", "a").startswith("a fires nowhere: it is switched off")
    assert why("a", "b", "--only", "a").startswith("b fires nowhere: it is switched off")
    orders = {
        why("c", "d", "--shuffle", str(seed), "--point", "after_run").split("\n")[0]
        for seed in range(9)
    }
    assert len(orders) == 2
    assert "the shuffle with seed 3" in why("c", "d", "--shuffle", "3", "--point", "after_run")


def test_the_plan_of_a_run_is_not_changed(new_run: NewRun) -> None:
    slow = 'hooks.slow={use="./common_hooks.py:slow", points=["after_val"]}'
    run_dir = new_run(slow, 'hooks.quick={use="./common_hooks.py:tells", points=["after_val"]}')
    shown = why("slow", "quick", str(run_dir.path)).splitlines()
    assert shown[1] == "  nothing says so but the file"
    assert "to fire" not in "\n".join(shown)
    assert "its plan is recorded" in refused("why", "slow", "quick", run_dir.path, "--shuffle", "1")


WRONG = (
    *(
        "graph p.toml --point after_vall",
        "graph p.toml --point before_run",
        "graph p.toml --hook laet",
    ),
    *(
        "graph p.toml --hook late --point before_run",
        "graph p.toml --out plan.pdf",
        "graph p.toml --point around_val",
    ),
    *(
        "graph p.toml --point around_vale",
        "why a c --point around_val",
        "why a c --point around_vale",
    ),
    *("why off laet --point after_trian", "why a a"),
)


def test_what_cannot_be_drawn_or_answered_is_named() -> None:
    check_cases("graph-mistakes.txt", {command: [refused(*command.split())] for command in WRONG})


def test_which_pipeline_must_be_plain(here: Path) -> None:
    (here / "pipelines").mkdir()
    (here / "pipelines/q.toml").write_text(PIPELINE)
    assert "name one: p.toml" in refused("why", "a", "c")
    assert "pipelines/q.toml:15" in why("a", "c", "pipelines/q.toml")
    (here / "p.toml").unlink()
    assert why("a", "c").startswith("at before_train: a fires before c")
    (here / "pipelines/q.toml").unlink()
    assert "no pipeline file here" in refused("why", "a", "c")


GROUPED = CHAIN.replace("[hooks]", '[groups.middle]\nhooks = ["b", "c*"]\n[hooks]')


@pytest.fixture
def grouped(tmp_path: Path) -> Path:
    file = tmp_path / "grouped.toml"
    file.write_text(GROUPED)
    return file


@pytest.mark.parametrize(
    ("options", "hooks"),
    [
        ("--hook group:middle", {"a", "b", "c", "d"}),
        ("--ancestors group:middle", {"a", "b", "c"}),
        ("--descendants group:middle --point after_run", {"c", "d"}),
        ("--without group:middle", {"a", "d", "e"}),
        ("--only group:middle", {"b", "c"}),
        ("--only group:middle --only e", {"b", "c", "e"}),
        ('--only group:middle --set groups.middle.hooks=["e"]', {"e"}),
        ('--only group:new --set groups.new.hooks=["d"]', {"d"}),
    ],
)
def test_a_group_stands_for_its_hooks_in_options(
    options: str, hooks: set[str], grouped: Path
) -> None:
    part = json.loads(graph(*options.split(), "--format", "json", pipeline=str(grouped)))
    assert {hook["name"] for hook in part["hooks"]} == hooks


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--hook group:midle", 'did you mean "middle"?'),
        ("--hook middle", '"group:middle"'),
        ("--without group:midle", 'did you mean "middle"?'),
        ("--collapse midle", 'did you mean "middle"?'),
        ("--collapse middle --format json", "JSON has every hook"),
        ("--hook group:middle --without group:middle", "no hooks that are on"),
    ],
)
def test_a_group_that_is_none_is_refused(options: str, words: str, grouped: Path) -> None:
    assert words in refused("graph", str(grouped), *options.split())


@pytest.mark.parametrize(
    "options", ["--collapse middle", "--collapse group:middle", "--collapse-groups"]
)
def test_a_group_is_collapsed(options: str, grouped: Path) -> None:
    drawn = graph(*options.split(), "--point", "after_train_iter", pipeline=str(grouped))
    assert "2 hooks: b, c" in drawn


def test_a_base_declares_a_group_and_a_file_overrides_it(grouped: Path) -> None:
    above = grouped.with_name("above.toml")
    above.write_text(
        'extends = "grouped.toml"\n[groups.middle]\nhooks = ["c"]\n[hooks.d]\nafter ='
        ' ["group:middle"]\n'
    )
    plan = Plan.from_json(graph("--format", "json", pipeline=str(above)))
    (group,) = plan.groups
    assert group.members == ("c",)
    assert group.where.endswith("above.toml:3")
    stated = [edge for edge in plan.edges if edge.group]
    assert {(edge.first, edge.then) for edge in stated} == {("c", "d")}
    why = invoke("why", "c", "d", str(above))
    assert "above.toml:5, which names group:middle (" in why
    assert "above.toml:3)" in why


def test_a_faulty_group_is_reported_with_the_other_mistakes(grouped: Path) -> None:
    message = refused(
        "graph",
        str(grouped),
        "--set",
        "groups.middle.hooks=3",
        "--set",
        "hooks.a.use=nothing_like_it",
    )
    assert "groups.middle.hooks" in message
    assert "nothing_like_it" in message


def test_the_test_that_repeats_the_validation_is_named_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    drawn = graph(pipeline="pipelines/cifar.toml", columns=200)
    assert drawn.count("before_test_epoch") == 1
    assert drawn.splitlines()[-1].endswith("without early_stop, checkpoint")
    assert "enters around_test" in graph("--point", "before_test", pipeline="pipelines/cifar.toml")
