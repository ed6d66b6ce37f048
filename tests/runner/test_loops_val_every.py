"""`val_every` in either unit, in both loops."""

from __future__ import annotations

import pytest

from tests.conftest import Trained, records


@pytest.mark.parametrize(
    ("length", "val_every", "validated"),
    [
        ("max_epochs = 2", "4it", [4, 8, 10]),
        ("max_epochs = 2", "5it", [5, 10]),
        ("max_epochs = 2", "100it", [10]),
        ("max_epochs = 3", "2ep", [10, 15]),
        ("max_iters = 12", "1ep", [5, 10, 12]),
        ("max_iters = 10", "1ep", [5, 10]),
        ("max_iters = 7", "3it", [3, 6, 7]),
    ],
)
def test_when_it_validates(trained: Trained, length: str, val_every: str, validated: list[int]) -> None:
    run_dir = trained(f"run.val_every='{val_every}'", swap=("max_epochs = 3", length))
    assert [record["it"] for record in records(run_dir, "metrics")] == validated
