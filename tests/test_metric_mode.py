"""Whether less or more is better follows from the words of a metric's name;
where it does not, it must be said.
"""

import pytest

from hookflow.errors import UserError
from hookflow.metric_mode import choose_mode, read_mode_from_name

LESS = """loss val/loss loss_cls Loss train.loss valloss mae RMSE val_mse error_rate top1_err
    perplexity ppl nll WER cer loss@2 mean-error loss2"""
MORE = """accuracy accuracy@5 val/acc acc1 accuracy/top1 F1 f1_score macro_precision recall@10 AUC
    mIoU iou mAP mAP50 bbox_mAP bleu bleu-4 R2 psnr SSIM testaccuracy"""
NOT_PLAIN = "score class mapping neg_mse loss_accuracy top1 lr errand real gap"


@pytest.mark.parametrize(("metrics", "mode"), [(LESS, "min"), (MORE, "max")])
def test_the_words_of_a_name_say_the_mode(metrics: str, mode: str) -> None:
    assert [choose_mode(metric) for metric in metrics.split()] == [mode] * len(metrics.split())


@pytest.mark.parametrize("metric", NOT_PLAIN.split())
def test_a_mode_that_is_not_plain_must_be_stated(metric: str) -> None:
    assert read_mode_from_name(metric) is None
    with pytest.raises(UserError, match=r'mode = "min" or mode = "max"') as refused:
        choose_mode(metric)
    assert "did you mean" not in str(refused.value)
    assert choose_mode(metric, "min") == "min"
    assert choose_mode("loss", "max") == "max", "what is stated counts"


@pytest.mark.parametrize(
    ("metric", "meant"),
    [("acuracy", "accuracy"), ("clean/maee", "clean/mae"), ("a/b/acuc", "a/b/auc")],
)
def test_a_misspelt_name_gets_the_nearest_one_of_its_set(metric: str, meant: str) -> None:
    with pytest.raises(UserError, match=f'did you mean "{meant}"'):
        choose_mode(metric)
