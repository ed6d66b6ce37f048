"""Hooks as their authors wrote them for other frameworks; none of those is installed."""


class OfMMEngine:
    priority = "VERY_LOW"

    def before_train(self, runner):
        self.runner = runner

    def after_train_iter(self, run, batch_idx, data_batch=None, outputs=None):
        print(data_batch)

    def _after_iter(self, runner, batch_idx, data_batch=None, outputs=None, mode="train"):
        print(batch_idx, mode)


class OfLightning:
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        print(trainer.global_step)

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        print(optimizer)


class OfKeras:
    def on_epoch_end(self, epoch, logs=None):
        print(epoch, logs)


class OfHuggingFace:
    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = state.global_step % args.save_steps == 0

    def on_log(self, args, state, control, logs=None, **kwargs):
        print(logs)


class OfFastai:
    def after_batch(self):
        print(self.learn)


def of_ignite(engine):
    print(engine.state)


def of_mmengine(run, data_batch=None):
    print(data_batch)


class Ours:
    """Has names of others for things of its own: all of that is allowed."""

    order = 3

    def __init__(self, state=None, trainer="", args=()):
        self.priority = 7
        self.runner = (state, trainer, args)

    def after_train_epoch(self, run, *args, **kwargs):
        self._after_epoch(run)

    def after_val(self, run, metrics=None, verbose=True):
        print(metrics, verbose)

    def forward(self, model, args, output):
        print(model)

    def _after_epoch(self, run):
        print(run.epoch)
