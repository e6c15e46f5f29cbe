"""Fits that are broken off."""

import keras


class Interrupt(keras.callbacks.Callback):
    """Breaks a fit off in an epoch, as a lost machine would: at its "begin", after a step, or at its "end"."""

    def __init__(self, epoch, when="begin", error=KeyboardInterrupt):
        super().__init__()
        self.place, self.error, self.epoch = (epoch, when), error, None

    def reached(self, when):
        if (self.epoch, when) == self.place:
            raise self.error

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.reached("begin")

    def on_train_batch_end(self, batch, logs=None):
        self.reached(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.reached("end")
