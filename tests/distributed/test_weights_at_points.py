"""At every point a parameter is what docs/how-to/distributed.md says,
and what a hook changes in place lasts.
"""

import pytest
import torch

from tests.conftest import Train, messages
from tests.distributed.conftest import NewClouds, TrainBoth, assert_alike
from tests.distributed.several import carry_out, messages_of, printed
from tests.distributed.touching import TOUCHED
from tests.runner.same import assert_same, final_state, logged

TEST_SET = 'data.test={use="./clouds.py:Clouds", args={examples=22, seed=8}, loader={batch_size=8}}'
TOUCHING = [
    'model.use="./touching.py:Stacked"',
    TEST_SET,
    "run.test=true",
    "run.max_epochs=2",
    "hooks.ema.enabled=false",
]
FAILS = 'hooks.fails={use="./touching.py:fails", points=["after_test"], after=["touches"]}'
ELSEWHERE = {
    "before_predict",
    "before_predict_iter",
    "after_predict_iter",
    "after_predict",
    "on_exception",
}
"""Points that a training does not come to, and one that ranks come to as each fails for itself."""
STRATEGIES = [
    pytest.param([], id="ddp"),
    pytest.param(['distributed.strategy="fsdp"'], id="fsdp"),
    pytest.param(
        ['distributed={strategy="fsdp", units=[]}', "run.accumulate=2"],
        id="fsdp, whole, accumulated",
    ),
]


@pytest.mark.parametrize("distributed", STRATEGIES)
def test_a_change_in_place_lasts_at_every_point(
    new_clouds: NewClouds, train_here: Train, distributed: list[str]
) -> None:
    sharded = str("fsdp" in str(distributed)).lower()
    touches = f'hooks.touches={{use="./touching.py:Touches", args={{sharded={sharded}}}}}'
    alone, together = (new_clouds(*TOUCHING, *distributed, touches) for _ in range(2))
    assert train_here(alone) == 0
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    expected = f"touched {' '.join(sorted(set(TOUCHED) - ELSEWHERE))}"
    assert [text for text in messages(alone) if text.startswith("touched")] == [expected]
    assert messages_of(together, 0, "touched") == messages_of(together, 1, "touched") == [expected]
    assert "no optimizer trains" not in " ".join(messages_of(together, 0, ""))
    weights = [
        *messages_of(alone, 0, "weights"),
        *(messages_of(together, rank, "weights")[0] for rank in (0, 1)),
    ]
    by_run = [torch.tensor([float(word) for word in text.split()[1:]]) for text in weights]
    torch.testing.assert_close(by_run[1], by_run[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(by_run[2], by_run[0], rtol=1e-4, atol=1e-5)


def test_a_change_in_place_lasts_after_an_exception(
    new_clouds: NewClouds, train_here: Train
) -> None:
    run_dir = new_clouds(*TOUCHING, FAILS, 'hooks.touches={use="./touching.py:Touches"}')
    assert train_here(run_dir) == 1
    (seen,) = messages_of(run_dir, 0, "touched")
    assert "on_exception" in seen.split()


@pytest.mark.parametrize("distributed", STRATEGIES[:2])
def test_weights_swapped_around_a_pass_are_put_back(
    new_clouds: NewClouds, train_here: Train, distributed: list[str]
) -> None:
    """By hooks of one's own and built in, and beside hooks that evaluate in the middle of an
    iteration.

    Halves and doubles are exact, so that the run without the swap trains to the same weights.
    """
    swap = 'hooks.halves={use="./touching.py:Halves", after=["ema"]}'
    evaluate = (
        'hooks.evaluates={use="./touching.py:evaluates", points=["after_backward",'
        ' "after_train_iter"]}'
    )
    overrides = [
        TEST_SET,
        "run.test=true",
        'run.val_every="2it"',
        'hooks.swa={use="swa", args={begin=2, every=2}}',
    ]
    overrides += [*distributed, evaluate]
    plain, alone, together = (
        new_clouds(*overrides),
        new_clouds(*overrides, swap),
        new_clouds(*overrides, swap),
    )
    assert train_here(plain) == train_here(alone) == 0
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    assert_same(final_state(alone)["model"], final_state(plain)["model"])
    assert_alike(alone, together, "model", "model_ema", "model_swa")


def test_a_number_of_sharded_tensors_is_logged_as_in_one_process(train_both: TrainBoth) -> None:
    norms = 'hooks.norms={use="./touching.py:logs_norms", points=["before_optimizer_step"]}'
    alone, together = train_both(norms, 'distributed.strategy="fsdp"', "run.max_epochs=1")
    assert_alike(alone, together)
    for name in ("gradient_norm", "weights_squared"):
        assert len(logged(together, name)) == 6
    assert not [text for text in messages(together) if "cannot be read" in text]


def test_the_penalty_of_a_task_counts_once_over_uneven_shares(train_both: TrainBoth) -> None:
    """With DDP; FSDP is refused, since it would not average the gradient."""
    penalised = [
        'task.use="./touching.py:penalised"',
        "hooks.accuracy.enabled=false",
        "hooks.checkpoint.args={}",
    ]
    assert_alike(*train_both(*penalised), "model")


@pytest.mark.parametrize("distributed", STRATEGIES[:2])
def test_buffers_that_are_replaced_are_those_of_rank_0(
    ranks_trained: NewClouds, distributed: list[str]
) -> None:
    tells = 'hooks.tells={use="./touching.py:tells_buffers", points=["after_train_iter"]}'
    run_dir = ranks_trained(
        'model.use="./touching.py:Counting"', "run.max_epochs=1", tells, *distributed
    )
    first, second = (messages_of(run_dir, rank, "buffers") for rank in (0, 1))
    assert first == second
    assert [text.split()[1] for text in first] == [f"[{count}.0]" for count in range(1, 7)]
