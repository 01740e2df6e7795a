"""The wrapper of Keras's optimizers, for every backend of Keras 3 and for TensorFlow's Keras 2.13 and newer."""


def distributed(optimizer, reduce):
    """Returns an optimizer of a class derived from the optimizer's own, whose gradients go through reduce() first."""
    kind = type(optimizer)
    if hasattr(kind, '_reduces_gradients'):
        return optimizer

    def apply(self, grads, trainable_variables=None):
        return kind.apply(self, reduce(list(grads)), trainable_variables)

    made = type(kind.__name__, (kind,), {'apply': apply, '_reduces_gradients': True, '__module__': kind.__module__})
    return made.from_config(optimizer.get_config())
