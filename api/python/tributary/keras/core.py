"""What the binding of Keras has beside its callbacks. The backend's own binding does the sums."""

import keras
import numpy as np

from .. import job
from ..engine import AVG, SUM
from ..reductions import Average, Sum
from .optimizer import distributed

_backend = keras.backend.backend()
if _backend == 'tensorflow':
    from ..tensorflow import Compression, init, shutdown  # noqa: F401 (names of this module)
    from ..tensorflow.gradients import reduce_gradients
elif _backend == 'jax':
    from .. import jax as _jax
    from ..jax import init, shutdown  # noqa: F401

    Compression = _jax.Compression

    def reduce_gradients(gradients, op=Average, compression=None):
        return _jax.allreduce(gradients, op, 'gradient', compression)
else:
    from ..torch import Compression, init, shutdown  # noqa: F401
    from ..torch import ops as _torch_ops

    def reduce_gradients(gradients, op=Average, compression=Compression.none):
        pairs = [compression.compress(gradient) for gradient in gradients]
        handles = [
            _torch_ops.submit_allreduce(
                tensor,
                tensor.detach(),
                'gradient.%d' % index,
                op,
                priority=-index,
                codec=_torch_ops.codec_for(compression, tensor),
            )
            for index, (tensor, _) in enumerate(pairs)
        ]
        return [compression.decompress(handle.wait(), context) for handle, (_, context) in zip(handles, pairs)]


def DistributedOptimizer(
    optimizer,
    name=None,
    device_dense='',
    device_sparse='',
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=Average,
    **_unused,
):
    """Returns the optimizer with gradients that are reduced over all workers. Compile the model with jit_compile=False on
    TensorFlow: XLA does not know the operation."""
    return distributed(optimizer, lambda gradients: reduce_gradients(gradients, op, compression))


def _array(value):
    is_known = keras.ops.is_tensor(value) or isinstance(value, keras.Variable)
    return np.array(keras.ops.convert_to_numpy(value) if is_known else value, order='C')


def allreduce(value, name=None, average=True, op=None):
    """Returns the mean (or sum) of all workers' values, a numpy array."""
    array = _array(value)
    tensor = job.engine().declare_like('keras.%s.%s.%s' % (name or 'value', array.dtype, array.shape), array)
    return tensor.push_pull(array, reduce=SUM if op == Sum or not average else AVG).wait()


push_pull = allreduce


def broadcast(value, root_rank, name=None):
    """Returns the root's value on every worker, a numpy array."""
    array = _array(value)
    return (
        job.engine()
        .declare_like('keras.%s.%s.%s' % (name or 'value', array.dtype, array.shape), array)
        .broadcast(array, root_rank)
        .wait()
    )


def broadcast_variables(variables, root_rank):
    """Gives all workers the root's variables."""
    arrays = [_array(variable) for variable in variables]
    operations = [
        job.engine().declare_like('keras.variable.%d' % index, array).broadcast(array, root_rank)
        for index, array in enumerate(arrays)
    ]
    for variable, operation in zip(variables, operations):
        variable.assign(operation.wait())


def broadcast_global_variables(root_rank, model=None):
    """Gives all workers the root's variables of a model: Keras 3 has no global ones."""
    if model is None:
        raise NotImplementedError(
            'Keras 3 has no global variables: use callbacks.BroadcastGlobalVariablesCallback, or give the model'
        )
    broadcast_variables(model.variables, root_rank)


def load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, **keywords):
    """Loads a model and makes its optimizer a distributed one."""
    model = keras.models.load_model(filepath, custom_objects=custom_objects, **keywords)
    if getattr(model, 'optimizer', None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
