"""Parameter groups: by name, by the type of module, with settings given or scaled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hookflow.errors import UserError, Where
from hookflow.pipeline.schema import ParamGroup
from hookflow.runner.builder.selectors import param_groups, scale_groups
from tests.conftest import NewRun, Trained
from tests.runner.same import final_state
from tests.toy import Net, Tied


def names_of(*groups: dict[str, Any]) -> list[list[str]]:
    """Return the names of the parameters in each group of the toy net, and of those that are left."""
    net = Net()
    called = {id(p): name for name, p in net.named_parameters()}
    made, problems = param_groups([ParamGroup(**group) for group in groups], net, Where)
    assert not problems, problems
    return [[called[id(p)] for p in group["params"]] for group in made]


NORM, BODY = "body.1.weight body.1.bias", "body.0.weight body.0.bias"


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        *(
            ([{"match": match}], [NORM, f"{BODY} head.weight head.bias"])
            for match in ("type:BatchNorm1d", "type:_NormBase", "type:*Norm*", ["*.1.weight", "body.1.*"])
        ),
        ([{"match": "type:Sequential"}, {"match": "*.bias"}], [f"{BODY} {NORM}", "head.bias", "head.weight"]),
        ([{"match": ["type:*Norm*", "*.bias"]}], [f"{NORM} body.0.bias head.bias", "body.0.weight head.weight"]),
    ],
)
def test_parameters_are_picked_by_name_and_by_all_that_modules_of_a_type_hold(
    groups: list[dict[str, Any]], names: list[str]
) -> None:
    assert names_of(*groups) == [group.split() for group in names]


@pytest.mark.parametrize("match", ["head.*", "embed.*", "type:Linear"])
def test_tied_weights_are_picked_by_either_name_and_are_in_one_group(match: str) -> None:
    net = Tied()
    made, problems = param_groups([ParamGroup(match=match)], net, Where)
    assert not problems
    groups = [list(map(id, group["params"])) for group in made]
    tied, others = [id(net.head.weight)], [id(net.middle.weight), id(net.middle.bias)]
    assert groups == ([tied, others] if match != "type:Linear" else [tied + others])


def test_a_type_that_nothing_is_of_is_told_with_the_nearest() -> None:
    _, (problem,) = param_groups([ParamGroup(match="type:BatchNorm2d")], Net(), Where)
    assert "matches no parameter that trains" in problem.message
    assert problem.where == Where("0.match")
    assert "BatchNorm1d" in problem.hint


def test_settings_are_scaled_before_a_schedule_sees_them(trained: Trained) -> None:
    groups = 'optimizer.groups=[{match=["type:*Norm*", "*.bias"], scale={lr=0.1, momentum=0.5}}]'
    run_dir = trained(groups, "run.max_epochs=1")
    state: Any = final_state(run_dir)["optimizer"]
    (first, last), begins = state["param_groups"], 0.1
    assert (first["initial_lr"], first["momentum"]) == (begins * 0.1, 0.45)
    assert (last["initial_lr"], last["momentum"]) == (begins, 0.9)
    assert first["lr"] == pytest.approx(last["lr"] * 0.1)


def test_what_is_no_number_of_the_optimizer_cannot_be_scaled() -> None:
    groups = [ParamGroup(match="*.bias", scale={"momentun": 0.1})]
    optimizer = torch.optim.SGD(param_groups(groups, Net(), Where)[0], lr=0.5)
    with pytest.raises(UserError, match='SGD has no number "momentun" to scale') as raised:
        scale_groups(optimizer, groups, Where)
    assert raised.value.problems[0].where == Where("0.scale.momentun")
    assert 'did you mean "momentum"?' in raised.value.problems[0].hint


def test_a_setting_is_given_or_scaled(new_run: NewRun) -> None:
    with pytest.raises(UserError, match='"lr" is given in args, too'):
        new_run('optimizer.groups=[{match="*.bias", args={lr=1}, scale={lr=2}}]')
