"""Metrics over two ranks are those of the whole set at once,
where the last batch is not even either.
"""

import pytest

from tests.conftest import TESTS, records
from tests.distributed.conftest import NewClouds
from tests.runner.same import logged
from tests.support.built_in_hooks import inline
from tests.support.metric_cases import at_once, hooks_for, rows_of, share_of_right
from tests.support.precomputed_outputs import EXAMPLES, given


@pytest.mark.parametrize("kind", ["ignored", "labels", "numbers"])
def test_a_metric_of_two_ranks_is_that_of_the_whole_set(
    ranks_trained: NewClouds, kind: str
) -> None:
    file = f"{TESTS}/support/precomputed_outputs.py"
    made = f'{{use="{file}:given", args={{kind="{kind}"}}, loader={{batch_size=8}}}}'
    data = [f"data.{split}={made}" for split in ("train", "val")]
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "clip", "ema", "checkpoint")]
    hooks = [f"hooks.own_{name}={inline(hook)}" for name, hook in hooks_for(kind).items()]
    if kind == "ignored":
        hooks.append('hooks.own_train={use="accuracy", args={stages=["train"]}}')
    model = [
        f'model.use="{file}:Scale"',
        f'task.use="{file}:Returns"',
        "optimizer.args.lr=0.0",
        "run.max_epochs=1",
    ]
    run_dir = ranks_trained(*data, *off, *hooks, *model, "optimizer.args.weight_decay=0.0")
    (found,) = records(run_dir, "metrics")
    first = given(kind).tensors[0].reshape(EXAMPLES, -1)[:, 0]
    expected = {**at_once(kind), "square": float(first.square().mean()), "loss": 0.0}
    assert found["v"] == pytest.approx(expected, abs=2e-6)
    if kind == "ignored":
        assert [*logged(run_dir, "train/accuracy").values()] == pytest.approx(
            [share_of_right(*rows_of(kind))]
        )
