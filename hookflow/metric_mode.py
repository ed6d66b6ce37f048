"""Whether less or more of a metric is better: its mode, which follows from the name where that is plain."""

import re
from functools import lru_cache
from typing import Literal

from hookflow.errors import Problem, UserError, misspelt, nearest

Mode = Literal["max", "min"]

MODE_MEANING = "whether more or less of the metric is better; its name says it if left out"
"""The description of the argument `mode` of hooks that monitor a metric."""

WORDS: dict[Mode, str] = {
    "min": """loss losses error errors err mse rmse msle rmsle mae mape smape nll bce xent logloss brier ece perplexity
        ppl wer cer ter eer fid kid lpips bpb bpc bpd epe""",
    "max": """accuracy acc f1 fbeta precision recall auc auroc auprc ap map mar mrr ndcg iou miou dice jaccard bleu
        sacrebleu rouge meteor cider spice chrf r2 psnr ssim kappa mcc specificity sensitivity hota mota elbo pearson
        spearman reward""",
}
"""The words of a metric's name that say its mode."""

ENDINGS: dict[Mode, tuple[str, ...]] = {
    "min": ("loss", "error", "perplexity"),
    "max": ("accuracy", "precision", "recall"),
}
"""Words that say it also at the end of another, as in `valloss`."""

NEGATED = {"neg", "negative", "minus"}
"""Words that turn a mode round: what is meant then must be said."""

_MODES: dict[str, Mode] = {word: mode for mode, words in WORDS.items() for word in words.split()}


@lru_cache(maxsize=4096)  # screens ask for the same names several times a second
def mode_by_name(metric: str) -> Mode | None:
    """Return the mode that the words of a name say (`val/loss`, `accuracy@5`, `map50`); None where it is not plain."""
    words = set(re.findall(r"[a-z0-9]+", metric.lower().replace("_", " ")))
    modes: set[Mode] = set()
    for word in words:
        if mode := _MODES.get(word) or _MODES.get(word.rstrip("0123456789")):
            modes.add(mode)
        else:
            modes.update(mode for mode, endings in ENDINGS.items() if word.endswith(endings))
    return modes.pop() if len(modes) == 1 and not words & NEGATED else None


def mode_of(metric: str, stated: Mode | None = None, beside: str = "") -> Mode:
    """Return the mode that is stated, or else that of the name. Raises UserError where neither says it.

    `beside` says where the mode belongs, if not beside the metric.
    """
    if mode := stated or mode_by_name(metric):
        return mode
    message = f'"{metric}" does not say whether less or more of it is better'
    hint = f'write mode = "min" or mode = "max"{beside}'
    of, slash, last = metric.rpartition("/")  # clean/accuracy is the accuracy of a set
    slips = [word for word in _MODES if misspelt(last, word, shortest=3) and max(len(last), len(word)) > 3]  # not gap
    near = nearest(last, slips)
    near = near.replace('"', f'"{of}{slash}', 1)
    raise UserError(Problem(message, hint=f"{near} If not, {hint}" if near else hint))
