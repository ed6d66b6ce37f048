from typing import NamedTuple


class Print:
    def after_train_itr(self, run):
        print(run.iter)

    def before_val(self, batch):
        print(batch)

    def state_dict(self):
        return {}


def shout(outputs):
    print(outputs)


class Unlike:
    async def after_train_iter(self):
        pass

    def after_val(run):  # noqa: N805
        print(run)

    @staticmethod
    def before_train(run):
        print(run)


class AfterEMA:
    after = ("ema",)

    def after_optimizer_step(self, run):
        print(run)


class MisspeltSlots:
    reads = {"after_vall": ("metrics",)}  # noqa: RUF012  # it is read, never changed
    writes = "model"

    def after_val(self, metrics):
        print(metrics)


class Astray:
    phase = "later"
    after = "ema"
    points = ("after_vall", "after_test")

    def after_val(self):
        pass


class Narrow:
    def __init__(self, width, depth=2):
        pass


class Wide(Narrow):
    pass


def weighted(run, batch, scale, *, weight=1.0):
    pass


class Pairs(NamedTuple):
    left: int
    right: int
