"""Metrics of a whole set, computed at once, and the hooks that compute them batch by batch."""

from typing import Any

import torch
import torchmetrics.functional.classification as whole
from torch import Tensor

from tests.support.precomputed_outputs import CLASSES, given

MULTICLASS: dict[str, Any] = {"num_classes": CLASSES, "ignore_index": -100}
OF_CLASSES: dict[str, Any] = {
    "micro": {"use": "MulticlassAccuracy", "args": {**MULTICLASS, "average": "micro"}},
    "f1": {"use": "MulticlassF1Score", "args": MULTICLASS},
    "auroc": {"use": "MulticlassAUROC", "args": MULTICLASS},
    "calibration": {"use": "MulticlassCalibrationError", "args": MULTICLASS},
    "kappa": {"use": "MulticlassCohenKappa", "args": MULTICLASS},
}
OF_ONE_LOGIT: dict[str, Any] = {
    "right": {"use": "BinaryAccuracy"},
    "auroc": {"use": "BinaryAUROC"},
    "f1": {"use": "F1Score", "args": {"task": "binary"}},
    "calibration": {"use": "BinaryCalibrationError"},
    "mcc": {"use": "BinaryMatthewsCorrCoef"},
}
OF_NUMBERS: dict[str, Any] = {
    "mse": {"use": "MeanSquaredError"},
    "r2": {"use": "R2Score"},
    "pearson": {"use": "PearsonCorrCoef"},
}
OF_LABELS: dict[str, Any] = {
    "right": {"use": "MultilabelAccuracy", "args": {"num_labels": CLASSES}},
    "map": {"use": "MultilabelAveragePrecision", "args": {"num_labels": CLASSES}},
    "exact": {"use": "MultilabelExactMatch", "args": {"num_labels": CLASSES}},
    "ranking": {"use": "MultilabelRankingLoss", "args": {"num_labels": CLASSES}},
}


def share_of_right(logits: Tensor, target: Tensor, topk: int = 1) -> float:
    """Return the share of the targets that are among the highest logits (N,
    classes), one by one.
    """
    right, answers = 0.0, 0
    for row, wanted in zip(logits, target, strict=True):
        highest = row.argsort(descending=True)[:topk].tolist()
        if wanted.ndim:
            right += sum(float(wanted[k]) for k in highest)
            answers += 1
        elif 0 <= int(wanted) < len(row):
            right += int(wanted) in highest
            answers += 1
    return right / answers


def rows_of(kind: str) -> tuple[Tensor, Tensor]:
    """Return the logits (N, classes) and the targets of a whole set, one row for each target."""
    logits, target = given(kind).tensors
    if kind == "maps":
        return logits.permute(0, 2, 3, 1).reshape(-1, CLASSES), target.flatten()
    if kind == "tokens":
        return logits.reshape(-1, CLASSES), target.flatten()
    return logits, target


def at_once(kind: str) -> dict[str, float]:
    """Return the metrics of a whole set, of probabilities that are computed here."""
    logits, target = rows_of(kind)
    if kind == "binary":
        scores = logits.sigmoid()
        return {
            "right": float(((scores > 0.5) == target).float().mean()),
            "auroc": float(whole.binary_auroc(scores, target)),
            "f1": float(whole.binary_f1_score(scores, target)),
            "calibration": float(whole.binary_calibration_error(scores, target)),
            "mcc": float(whole.binary_matthews_corrcoef(scores, target)),
        }
    if kind == "numbers":
        errors, spread = (logits - target).square(), (target - target.mean()).square()
        return {
            "mse": float(errors.mean()),
            "r2": 1 - float(errors.sum() / spread.sum()),
            "pearson": float(torch.corrcoef(torch.stack([logits, target]))[0, 1]),
        }
    if kind == "labels":
        scores = logits.sigmoid()
        return {
            "right": float(((scores > 0.5) == target).float().mean()),
            "map": float(whole.multilabel_average_precision(scores, target, CLASSES)),
            "exact": float(((scores > 0.5) == target).all(1).float().mean()),
            "ranking": float(whole.multilabel_ranking_loss(scores, target, CLASSES)),
        }
    metrics = {f"accuracy{'_top2' * (k == 2)}": share_of_right(logits, target, k) for k in (1, 2)}
    if kind in ("hard", "ignored"):
        kept = target >= 0
        scores = logits.softmax(1)[kept]
        metrics["micro"] = metrics["accuracy"]
        metrics["f1"] = float(whole.multiclass_f1_score(scores, target[kept], CLASSES))
        metrics["auroc"] = float(whole.multiclass_auroc(scores, target[kept], CLASSES))
        metrics["calibration"] = float(
            whole.multiclass_calibration_error(scores, target[kept], CLASSES)
        )
        metrics["kappa"] = float(whole.multiclass_cohen_kappa(scores, target[kept], CLASSES))
    return metrics


def hooks_for(kind: str) -> dict[str, Any]:
    if kind == "binary":
        return {"metrics": {"use": "metrics", "args": {"metrics": OF_ONE_LOGIT}}}
    if kind == "numbers":
        return {"metrics": {"use": "metrics", "args": {"metrics": OF_NUMBERS}}}
    if kind == "labels":
        return {"metrics": {"use": "metrics", "args": {"metrics": OF_LABELS}}}
    last = {"class_dim": "last"} if kind == "tokens" else {}
    hooks = {
        "first": {"use": "accuracy", "args": last},
        "two": {"use": "accuracy", "args": {"topk": 2, **last}},
    }
    if kind != "shares":
        hooks["confusion"] = {"use": "confusion_matrix", "args": last}
    if kind in ("hard", "ignored"):
        hooks["metrics"] = {"use": "metrics", "args": {"metrics": OF_CLASSES}}
    return hooks
