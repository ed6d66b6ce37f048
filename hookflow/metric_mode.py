"""The mode of a metric: whether less or more of it is better.

The mode follows from the name where that is plain.
"""

import re
from functools import lru_cache
from typing import Literal

from hookflow.errors import Problem, UserError, is_misspelt, nearest

Mode = Literal["max", "min"]

MODE_MEANING = "whether more or less of the metric is better; its name says it if left out"
"""The description of the argument `mode` of hooks that monitor a metric."""

MODE_WORDS: dict[Mode, str] = {
    "min": (
        """loss losses error errors err mse rmse msle rmsle mae mape smape nll bce xent logloss
        brier ece perplexity ppl wer cer ter eer fid kid lpips bpb bpc bpd epe"""
    ),
    "max": (
        """accuracy acc f1 fbeta precision recall auc auroc auprc ap map mar mrr ndcg iou miou dice
        jaccard bleu sacrebleu rouge meteor cider spice chrf r2 psnr ssim kappa mcc specificity
        sensitivity hota mota elbo pearson spearman reward"""
    ),
}
"""The words of a metric's name that say its mode."""

MODE_ENDINGS: dict[Mode, tuple[str, ...]] = {
    "min": ("loss", "error", "perplexity"),
    "max": ("accuracy", "precision", "recall"),
}
"""Words that say it also at the end of another, as in `valloss`."""


def compute_gain(value: float, other: float, mode: Mode) -> float:
    """Return by how much a value is better than another one; below 0 where it is worse."""
    if mode == "max":
        return value - other
    return other - value


NEGATING_WORDS = {"neg", "negative", "minus"}
"""Words that turn a mode round: what is meant then must be said."""

_MODE_BY_WORD: dict[str, Mode] = {
    word: mode for mode, words in MODE_WORDS.items() for word in words.split()
}


_ARITHMETIC_SIGN = re.compile(r"\s(?:[-+*/%]|\*\*|//)\s|\b(?:abs|min|max|value)\(")
"""The mark of a formula: a sign between blanks, or a call.

The name of a metric may have a hyphen in it.
"""


def is_formula(metric: str) -> bool:
    """Say whether a text is a formula of metrics, and not the name of one."""
    return _ARITHMETIC_SIGN.search(metric) is not None


@lru_cache(maxsize=4096)  # screens ask for the same names several times a second
def read_mode_from_name(metric: str) -> Mode | None:
    """Return the mode that the words of a name say (`val/loss`, `accuracy@5`, `map50`).

    It is None where it is not plain.
    """
    if is_formula(metric):  # 1 - accuracy is the better the less it is
        return None
    words = set(re.findall(r"[a-z0-9]+", metric.lower().replace("_", " ")))
    modes: set[Mode] = set()
    for word in words:
        modes |= _find_modes_of_word(word)
    if len(modes) != 1 or words & NEGATING_WORDS:
        return None
    return modes.pop()


def _find_modes_of_word(word: str) -> set[Mode]:
    """Return the modes that a word says, by itself (`map50` is `map`) or by its ending.

    Most words say none.
    """
    for whole in (word, word.rstrip("0123456789")):
        if whole in _MODE_BY_WORD:
            return {_MODE_BY_WORD[whole]}
    return {mode for mode, endings in MODE_ENDINGS.items() if word.endswith(endings)}


def choose_mode(metric: str, stated: Mode | None = None, beside: str = "") -> Mode:
    """Return the mode that is stated, or else that of the name.

    Raises UserError where neither says it.

    `beside` says where the mode belongs, if not beside the metric.
    """
    mode = stated or read_mode_from_name(metric)
    if mode is not None:
        return mode
    hint = f'write mode = "min" or mode = "max"{beside}'
    if is_formula(metric):
        message = (
            f'"{metric}" is a formula, which does not say whether less or more of it is better'
        )
        raise UserError(Problem(message, hint=hint))
    message = f'"{metric}" does not say whether less or more of it is better'
    near = _nearest_metric(metric)
    if near:
        hint = f"{near} If not, {hint}"
    raise UserError(Problem(message, hint=hint))


def _nearest_metric(metric: str) -> str:
    """Return `did you mean "clean/accuracy"?` for a name whose last word is misspelt.

    The text is empty for others.
    """
    name_of_set, slash, last = metric.rpartition("/")  # clean/accuracy is the accuracy of a set
    slips = []
    for word in _MODE_BY_WORD:
        is_long_enough = max(len(last), len(word)) > 3  # gap is no slip of map
        if is_long_enough and is_misspelt(last, word, shortest=3):
            slips.append(word)
    return nearest(last, slips).replace('"', f'"{name_of_set}{slash}', 1)
