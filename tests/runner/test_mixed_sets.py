"""Several training sets, mixed: which batches come, how a run is resumed, what is logged,
and what is refused.
"""

import inspect
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader

from hookflow.cli.resume import PipelineChanges
from hookflow.cli.run import make_fork
from hookflow.runner.data.mixed import MixOrder, RandomOrder, TogetherOrder, TurnOrder
from tests.conftest import (
    NewRun,
    Train,
    Trained,
    circle,
    hookflow_here,
    messages,
    reason,
    records,
    strikes,
    wait_for,
)
from tests.runner.mixed_parts import BATCH, SIZES, AnswersInSetB, Net, Notes, examples
from tests.runner.same import assert_same, assert_same_end, final_state, logged, rest_of
from tests.support.processes import Training

PARTS = "tests.runner.mixed_parts"
IN_TURNS = "mix = { a = 3, b = 1 }"
AT_RANDOM = 'mix = { a = 3, b = 1 }\nmix_order = "random"'
TOGETHER = 'mix_order = "together"'
EVERY_4 = (
    'hooks.checkpoint={use="checkpoint", points=[{at="after_train_iter", every=4}], args={keep=9}}'
)

Losses = Callable[[Net, dict[str, list[Tensor]]], Tensor]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a pipeline of two training sets, and return its file."""

    def write_pipeline(
        mix: str = IN_TURNS,
        *,
        kind: str = "examples",
        loader: str = "shuffle = false",
        task: str = "step",
    ) -> Path:
        made = f"loader = {{ batch_size = {BATCH}, {loader} }}" if loader else ""
        sets = [
            f'[data.train.{name}]\nuse = "{PARTS}:{kind}"\nargs = {{ name = "{name}" }}\n{made}'
            for name in SIZES
        ]
        lines = [
            '[run]\nname = "mixed"\ndevice = "cpu"\nmax_epochs = 2',
            f'[model]\nuse = "{PARTS}:Net"',
            '[optimizer]\nuse = "torch.optim:SGD"\nargs = { lr = 0.1, momentum = 0.9 }',
            f'[task]\nuse = "{PARTS}:{task}"',
            f"[data]\n{mix}",
            *sets,
            '[hooks.log]\nuse = "log"',
            f'[hooks.notes]\nuse = "{PARTS}:Notes"',
        ]
        file = tmp_path / "mixed.toml"
        file.write_text("\n".join(lines) + "\n")
        return file

    return write_pipeline


@pytest.fixture(autouse=True)
def sets_seen(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The set of each iteration, as the hook of the pipeline notes it."""
    seen: list[str | None] = []
    monkeypatch.setattr(Notes, "sets", seen)
    return seen


def batches_of(name: str) -> Iterator[list[Tensor]]:
    """Yield the batches of a set in the order of its examples, again and again,
    by PyTorch's own loader.
    """
    while True:
        yield from DataLoader(examples(name), batch_size=BATCH)


def plain_loop(steps: Sequence[tuple[str, ...]], losses: Losses) -> dict[str, Tensor]:
    """Return the weights after a loop of plain PyTorch,
    whose steps have a batch of each of these sets.
    """
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    batches = {name: batches_of(name) for name in SIZES}
    for names in steps:
        batch = {name: next(batches[name]) for name in names}
        optimizer.zero_grad()
        losses(net, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net.state_dict()


def loss_of_one(net: Net, batch: dict[str, list[Tensor]]) -> Tensor:
    ((inputs, target),) = batch.values()
    return cross_entropy(net(inputs), target)


def loss_of_all(net: Net, batch: dict[str, list[Tensor]]) -> Tensor:
    of_a = cross_entropy(net(batch["a"][0]), batch["a"][1])
    of_b = cross_entropy(net(batch["b"][0]), batch["b"][1])
    return of_a + 0.5 * of_b


def loss_by_set(net: Net, batch: dict[str, list[Tensor]]) -> Tensor:
    if "a" in batch:
        return loss_of_one(net, batch)
    inputs, target = batch["b"]
    return mse_loss(net(inputs), torch.eye(2)[target])


class TestOrder:
    @pytest.mark.parametrize(
        ("order", "shortest", "longest"),
        [
            # aaab aaab a: there is no eighth batch of a; aaab aaab aaab: there is the third of b
            pytest.param(TurnOrder({"a": 3, "b": 1}), 9, 12, id="in turns"),
            # 7 of 3/4 of the steps, and 3 of 1/4 of them
            pytest.param(RandomOrder({"a": 3, "b": 1}, seed=0), 9, 12, id="at random"),
            pytest.param(TogetherOrder(["a", "b"]), 3, 7, id="together"),
        ],
    )
    def test_an_epoch_ends_with_a_set(self, order: MixOrder, shortest: int, longest: int) -> None:
        lengths = {"a": 7, "b": 3}
        assert order.epoch_length(lengths, "shortest") == shortest
        assert order.epoch_length(lengths, "longest") == longest

    def test_the_longest_epoch_in_turns_has_every_batch(self) -> None:
        for shares in ({"a": 3, "b": 2}, {"a": 1, "b": 4}, {"a": 2, "b": 2}):
            order = TurnOrder(shares)
            for lengths in ({"a": 7, "b": 3}, {"a": 1, "b": 1}, {"a": 2, "b": 9}):
                steps = [name for (name,) in order.steps(0, order.epoch_length(lengths, "longest"))]
                counts = {name: steps.count(name) for name in lengths}
                assert all(counts[name] >= lengths[name] for name in lengths)
                last = steps[-1]
                assert counts[last] == lengths[last], "and not one step more"

    def test_at_random_the_shares_are_weights(self) -> None:
        order = RandomOrder({"a": 3, "b": 1}, seed=5)
        steps = order.steps(0, 4000)
        assert steps.count(("a",)) == pytest.approx(3000, abs=100)
        assert order.steps(0, 4000) == steps
        assert order.steps(1, 4000) != steps
        assert RandomOrder({"a": 3, "b": 1}, seed=6).steps(0, 4000) != steps


class TestTraining:
    """Against a loop of plain PyTorch over the same batches."""

    def test_in_turns(self, write: Write, trained: Trained, sets_seen: list[str | None]) -> None:
        run_dir = trained(pipeline=write())
        assert sets_seen == [*"aaabaaabaaab"] * 2
        expected = plain_loop([*"aaabaaabaaab"] * 2, loss_of_one)
        assert_same(final_state(run_dir)["model"], expected)

    def test_at_random(self, write: Write, trained: Trained, sets_seen: list[str | None]) -> None:
        run_dir = trained(pipeline=write(f"{AT_RANDOM}\nmix_epoch = 10"))
        assert len(sets_seen) == 20
        assert {*sets_seen} == {"a", "b"}
        assert sets_seen[:10] != sets_seen[10:], "each epoch is drawn anew"
        expected = plain_loop([(name,) for name in sets_seen if name is not None], loss_of_one)
        assert_same(final_state(run_dir)["model"], expected)

    def test_together(self, write: Write, trained: Trained, sets_seen: list[str | None]) -> None:
        run_dir = trained(pipeline=write(f'{TOGETHER}\nmix_epoch = "longest"', task="step_of_all"))
        assert sets_seen == [None] * 14
        assert_same(final_state(run_dir)["model"], plain_loop([("a", "b")] * 14, loss_of_all))

    def test_together_by_a_task_that_has_steps_for_single_sets_too(
        self, write: Write, trained: Trained
    ) -> None:
        run_dir = trained(pipeline=write(f'{TOGETHER}\nmix_epoch = "longest"', task="StepsOfBoth"))
        assert_same(final_state(run_dir)["model"], plain_loop([("a", "b")] * 14, loss_of_all))

    def test_a_step_for_each_set(
        self, write: Write, trained: Trained, sets_seen: list[str | None]
    ) -> None:
        run_dir = trained(pipeline=write("", task="StepsBySet"))
        assert sets_seen == [*"ababababababab"[:13]] * 2
        assert_same(final_state(run_dir)["model"], plain_loop([*sets_seen], loss_by_set))

    def test_an_epoch_of_so_many_steps_goes_on_in_each_set(
        self, write: Write, trained: Trained, sets_seen: list[str | None]
    ) -> None:
        """Five steps of an epoch have three batches of a;
        the next epoch begins with the fourth of them.
        """
        run_dir = trained(pipeline=write("mix_epoch = 5"))
        assert sets_seen == [*"ababa", *"ababa"]
        assert_same(final_state(run_dir)["model"], plain_loop([*sets_seen], loss_of_one))

    def test_limited(self, write: Write, trained: Trained, sets_seen: list[str | None]) -> None:
        run_dir = trained("run.limit_train=5", pipeline=write(""))
        assert sets_seen == [*"ababa", *"ababa"]
        assert_same(final_state(run_dir)["model"], plain_loop([*sets_seen], loss_of_one))

    def test_overfit(self, write: Write, trained: Trained, sets_seen: list[str | None]) -> None:
        trained("run.overfit=3", pipeline=write("", task="StepsBySet"))
        assert sets_seen == [*"aba", *"aba"]

    def test_accumulated_over_sets(
        self, write: Write, trained: Trained, sets_seen: list[str | None]
    ) -> None:
        run_dir = trained(
            "run.accumulate=2",
            "run.max_epochs=1",
            pipeline=write("mix = { a = 3, b = 1 }\nmix_epoch = 8"),
        )
        assert sets_seen == ["a", None, "a", None]
        assert [*logged(run_dir, "loss")] == [1, 2, 3, 4]
        assert [*logged(run_dir, "a/loss")] == [1, 3], "of iterations with batches of a alone"
        assert not logged(run_dir, "b/loss")

    @pytest.mark.parametrize("loader", ["shuffle = true", "workers = 1"])
    def test_a_hook_that_reads_the_sets_takes_no_batch_from_the_training(
        self, write: Write, trained: Trained, sets_seen: list[str | None], loader: str
    ) -> None:
        """`precise_bn` goes through the next epoch before each validation."""
        validation = (
            f'data.val={{use="{PARTS}:examples", args={{name="a"}}, loader={{batch_size=4}}}}'
        )
        overrides = [f'model.use="{PARTS}:Normed"', validation]
        file = write(f"{AT_RANDOM}\nmix_epoch = 5", kind="Drawing", loader=loader)
        alone = trained(*overrides, pipeline=file)
        seen_alone = list(sets_seen)
        sets_seen.clear()
        watched = trained(*overrides, 'hooks.precise={use="precise_bn"}', pipeline=file)
        assert sets_seen == seen_alone
        for name in ("layer.weight", "norm.weight"):
            assert torch.equal(
                final_state(watched)["model"][name], final_state(alone)["model"][name]
            )


def test_numbers_are_logged_by_set(write: Write, trained: Trained) -> None:
    """An epoch of one step each: the set of b is in the second iteration,
    and its mean in that of the epoch.
    """
    run_dir = trained('hooks.log.args={mean="epoch"}', pipeline=write("mix_epoch = 4"))
    both = logged(run_dir, "loss")
    of_a, of_b = logged(run_dir, "a/loss"), logged(run_dir, "b/loss")
    assert [*of_a] == [1, 3, 5, 7]
    assert [*of_b] == [2, 4, 6, 8]
    assert {**of_a, **of_b} == both
    means = logged(run_dir, "b/loss_epoch")
    assert means[4] == pytest.approx((both[2] + both[4]) / 2)
    assert means[8] == pytest.approx((both[6] + both[8]) / 2)


class TestResume:
    """A run that is ended in the middle of an epoch, and resumed,
    ends with the same bits as one that was not.
    """

    @pytest.mark.parametrize(
        ("mix", "task"),
        [
            pytest.param(IN_TURNS, "step", id="in turns"),
            pytest.param(AT_RANDOM, "step", id="at random"),
            pytest.param(TOGETHER, "step_of_all", id="together"),
        ],
    )
    def test_in_each_order(self, write: Write, resumes_alike: NewRun, mix: str, task: str) -> None:
        file = write(mix, kind="Drawing", loader="shuffle = true", task=task)
        resumes_alike("model.args={dropout=0.2}", point="after_backward", at=10, pipeline=file)

    @pytest.mark.parametrize(
        ("kind", "loader"),
        [
            pytest.param("Drawing", "workers = 1", id="workers"),
            pytest.param("Stream", "batches = 5", id="streams"),
            pytest.param(
                "examples", 'sampler = "tests.runner.mixed_parts:Draws"', id="samplers with a state"
            ),
            pytest.param("loader", "", id="loaders of PyTorch"),
        ],
    )
    def test_with_each_kind_of_set(
        self, write: Write, resumes_alike: NewRun, kind: str, loader: str
    ) -> None:
        file = write(AT_RANDOM, kind=kind, loader=loader)
        resumes_alike("model.args={dropout=0.2}", point="after_train_iter", at=15, pipeline=file)

    def test_from_a_checkpoint_of_the_middle(
        self, write: Write, trained: Trained, train_here: Train, tmp_path: Path
    ) -> None:
        """As after a kill, which leaves the checkpoints that there are."""
        whole = trained(EVERY_4, pipeline=write(AT_RANDOM, kind="Drawing", loader="workers = 0"))
        assert_same_end(whole, rest_of(whole, 8, tmp_path / "again", train_here))


class TestMistakes:
    @pytest.mark.parametrize(
        ("mix", "wrong", "hint"),
        [
            ("mix = { a = 3, bb = 1 }", "bb", 'did you mean "b"?'),
            ("mix = { a = 3 }", "no share of b", ""),
            ("mix = { a = 0, b = 1 }", "mix.a", ""),
            ('mix_order = "randm"', "mix_order", 'did you mean "random"?'),
            ('mix_epoch = "longst"', "mix_epoch", 'did you mean "longest"?'),
            ('mix = { a = 3, b = 1 }\nmix_order = "together"', "together", ""),
        ],
    )
    def test_check_says_where(self, write: Write, mix: str, wrong: str, hint: str) -> None:
        file = write(mix)
        done = hookflow_here("check", file.name, cwd=file.parent, code=2)
        lines = file.read_text().splitlines()
        last_key = max(number for number, line in enumerate(lines, 1) if line.startswith("mix"))
        assert f"mixed.toml:{last_key}:" in done.stderr
        assert wrong in done.stderr
        assert hint in done.stderr

    def test_a_mix_is_of_several_sets(self, trained: Trained, tmp_path: Path) -> None:
        file = tmp_path / "one.toml"
        file.write_text(
            circle("max_iters = 1").replace(
                "[data.train]", '[data]\nmix_epoch = "longest"\n[data.train]'
            )
        )
        done = hookflow_here("check", file.name, cwd=tmp_path, code=2)
        assert "one.toml:9:" in done.stderr
        assert "[data.train.NAME]" in done.stderr

    def test_a_step_that_is_misspelt(
        self, write: Write, new_run: NewRun, train_here: Train
    ) -> None:
        run_dir = new_run(pipeline=write("", task="Misspelt"))
        assert train_here(run_dir) == 2
        assert "step_bb" in reason(run_dir)
        assert 'did you mean "step_b"?' in reason(run_dir)

    def test_a_wrong_answer_names_the_step_of_its_set(
        self, write: Write, new_run: NewRun, train_here: Train
    ) -> None:
        run_dir = new_run(pipeline=write("", task="AnswersInSetB"))
        assert train_here(run_dir) != 0
        line = inspect.getsourcelines(AnswersInSetB.step_b)[1]
        assert f"mixed_parts.py:{line}: the task's step_b " in reason(run_dir)

    def test_a_set_of_another_length_is_not_resumed(
        self,
        write: Write,
        new_run: NewRun,
        train_here: Train,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        run_dir = new_run(
            *strikes(tmp_path, signal.SIGTERM, ("after_train_iter", 5), times=2), pipeline=write("")
        )
        assert train_here(run_dir) == 143
        monkeypatch.setitem(SIZES, "b", 16)
        assert train_here(run_dir, resume=True) == 2
        refused = str(records(run_dir, "refused")[-1]["reason"])
        assert "data.train.b had 12 examples" in refused
        assert "mixed.toml:19:" in refused

    def test_steps_for_sets_evaluate_nothing(
        self, write: Write, new_run: NewRun, train_here: Train
    ) -> None:
        validation = (
            f'data.val={{use="{PARTS}:examples", args={{name="a"}}, loader={{batch_size=4}}}}'
        )
        run_dir = new_run(validation, pipeline=write("", task="StepsBySet"))
        assert train_here(run_dir) == 2
        assert "evaluate" in reason(run_dir)


class TestCommands:
    def test_check_says_how_sets_are_mixed(self, write: Write, tmp_path: Path) -> None:
        file = write(f"{IN_TURNS}\nmix_epoch = 500")
        printed = hookflow_here("check", file.name, cwd=tmp_path, code=0).stdout
        assert "a 3, b 1, in turns; an epoch has 500 steps" in printed

    def test_one_of_the_sets_is_predicted(
        self, write: Write, trained: Trained, tmp_path: Path
    ) -> None:
        run_dir = trained("run.max_epochs=1", pipeline=write("", task="Predicts"))
        hookflow_here(
            "predict",
            str(run_dir.path),
            "--split",
            "train.b",
            "--out",
            "b.npz",
            cwd=tmp_path,
            code=0,
        )
        assert len(np.load(tmp_path / "b.npz")["logits"]) == SIZES["b"]


class TestFork:
    @pytest.mark.parametrize(
        ("kind", "loader"),
        [
            pytest.param("examples", "shuffle = false", id="datasets"),
            pytest.param("Stream", "batches = 5", id="streams"),
        ],
    )
    def test_each_set_goes_on_in_another_mix(
        self,
        write: Write,
        trained: Trained,
        train_here: Train,
        sets_seen: list[str | None],
        kind: str,
        loader: str,
    ) -> None:
        """Six batches of a and two of b are done, whichever the mix would have had by then."""
        parent = trained(EVERY_4, pipeline=write(IN_TURNS, kind=kind, loader=loader))
        begin = sets_seen[:8]
        sets_seen.clear()
        child = make_fork(
            f"{parent.path}:it00000008", None, PipelineChanges(("data.mix={a=1, b=1}",))
        )
        assert train_here(child) == 0, reason(child)
        assert begin == [*"aaabaaab"]
        assert sets_seen[:4] == [*"abab"]
        assert_same(final_state(child)["model"], plain_loop([*begin, *sets_seen], loss_of_one))

    def test_another_set_begins_anew(
        self, write: Write, trained: Trained, train_here: Train, sets_seen: list[str | None]
    ) -> None:
        parent = trained(EVERY_4, pipeline=write(IN_TURNS))
        child = make_fork(
            f"{parent.path}:it00000008", None, PipelineChanges(('data.train.b.args={name="a"}',))
        )
        assert train_here(child) == 0, reason(child)
        assert any("data.train.b is another" in text for text in messages(child, "warn"))


HANG_IN_A = {
    "a dataset": (
        '{{use="./data_loaders.py:HangsInEpoch2", args={{mark="{mark}"}}, loader={{batch_size=8,'
        " workers=1}}}}"
    ),
    "a loader with a sampler with a state": (
        '{{use="./data_loaders.py:rotating", args={{mark="{mark}"}}}}'
    ),
    "a loader that shuffles": '{{use="./data_loaders.py:shuffling", args={{mark="{mark}"}}}}',
}


@pytest.mark.long
@pytest.mark.parametrize("of_a", HANG_IN_A.values(), ids=HANG_IN_A)
def test_where_a_worker_of_one_set_hangs_no_batch_is_lost(
    new_run: NewRun, tmp_path: Path, of_a: str
) -> None:
    """It hangs at the sixth batch of a, in the middle of the second epoch of the mix."""
    mark, unhung = tmp_path / "hangs", tmp_path / "is there"
    unhung.touch()

    def overrides(file: Path) -> list[str]:
        of_b = '{use="./data_loaders.py:Clouds", loader={batch_size=8}}'
        return [
            f"data.train={{a={of_a.format(mark=file)}, b={of_b}}}",
            "data.mix_epoch=7",
            "run.sanity=false",
        ]

    whole = new_run(*overrides(unhung))
    assert Training(whole).wait() == 0, reason(whole)
    cut = new_run(*overrides(mark), 'hooks.hasty={use="./process_hooks.py:Hasty"}')
    training = Training(cut)
    wait_for(mark.exists)
    training.signal(signal.SIGTERM)
    assert training.wait() == 143
    assert records(cut, "end")[-1]["it"] == 9
    assert Training(cut, resume=True).wait() == 0
    assert_same_end(whole, cut)
