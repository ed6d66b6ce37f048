class Print:
    def after_train_itr(self, run):
        print(run.iter)

    def before_val(self, batch):
        print(batch)


def shout(outputs):
    print(outputs)
