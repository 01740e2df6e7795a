#!/usr/bin/env python3
"""tributary.torch and its torch.distributed backend, with workers on this machine's processors. Prints `ok NAME` / `not
ok NAME: why`, or one `skip NAME: why` and exits with 77.
"""

import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'tools', 'scons'))
import python_bed  # noqa: E402
import wheel  # noqa: E402
from cases import run_cases  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = (
    'reductions',
    'other_types',
    'in_place_and_strided',
    'views_of_complex_numbers',
    'scaling',
    'many_at_once',
    'bucket_callbacks',
    'gathers',
    'sparse',
    'uneven_data',
    'gradients_flow',
    'optimizer_equals_one_process',
    'scaler_of_gradients_waits_for_sums',
    'scaler_of_gradients_in_other_scripts',
    'cross_barrier',
    'closures',
    'accumulation_and_unused',
    'wrong_use_is_told',
    'nothing_is_kept',
    'scheduler_of_the_inner_optimizer',
    'batch_norm_over_all',
    'parallel_module',
    'sets',
    'codecs',
    'checkpoints',
    'functions_have_type_hints',
    'begins_anew',
    'suspended_and_resumed',
)


def all_cases(python, workers, *options):
    def case():
        # Servers of `tributary run` end with the job, so only a job without them can begin anew. One worker cannot be
        # fewer.
        left_out = (
            {'begins_anew', 'suspended_and_resumed'} if options else {'suspended_and_resumed'} if workers == 1 else ()
        )
        names = [name for name in CASES if name not in left_out]
        output = python_bed.run_workers(python, workers, HERE + '/torch_cases.py', *names, options=options)
        for name in names:
            assert output.count('%s is right' % name) == workers, (name, output[-1500:])

    return case


def backend(python):
    command = [python, '-m', 'torch.distributed.run', '--nproc-per-node', '3', HERE + '/c10d_cases.py']
    output = python_bed.run(command, python_bed.environment())
    assert output.count('is right') == 183, output[-1500:]


def backend_without_an_import(python):
    """Where the package is installed PyTorch knows the backend's name. The folder stands for site-packages."""
    program = (
        'import torch, torch.distributed as dist\n'
        'dist.init_process_group("tributary")\n'
        'value = torch.ones(3) * (dist.get_rank() + 1)\n'
        'dist.all_reduce(value)\n'
        'assert value.tolist() == [3, 3, 3], value\n'
        'print("the sum is right")\n'
        'dist.destroy_process_group()\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + '/tributary-0.dist-info')
        for name, text in ('entry_points.txt', wheel.ENTRY_POINTS), ('METADATA', wheel.METADATA.format(version='0')):
            with open(folder + '/tributary-0.dist-info/' + name, 'w') as file:
                file.write(text)
        with open(folder + '/train.py', 'w') as file:
            file.write(program)
        command = [python, '-m', 'torch.distributed.run', '--nproc-per-node', '2', folder + '/train.py']
        output = python_bed.run(command, python_bed.environment(folder))
        # Every program of the environment imports PyTorch with it, whatever has become of the library.
        broken = dict(python_bed.environment(folder), TRIBUTARY_LIBRARY=folder + '/none')
        python_bed.run([python, '-c', 'import torch'], broken)
    assert output.count('the sum is right') == 2, output[-1500:]


def backend_of_another_version(python):
    """PyTorch's private names may be others."""
    program = (
        'import sys, torch\n'
        'from torch._C._dynamo import eval_frame\n'
        '%s\n'
        'import tributary.torch.c10d\n'
        'assert torch.distributed.is_backend_available("tributary")'
    )
    for change in 'del eval_frame._FrameExecStrategy', 'eval_frame._FrameExecStrategy = lambda: 0':
        python_bed.run([python, '-c', program % change], python_bed.environment())


def horovod_and_byteps_names(python):
    for name in 'horovod', 'byteps':
        program = 'import %s.torch as x, tributary.torch as y; assert x is y; x.init(); print("alias", x.rank())' % name
        output = python_bed.run_workers(python, 2, '-c', program, options=('--as', name))
        assert output.count('alias') == 2, output
    program = (
        'import horovod.torch as hvd, horovod.torch.elastic as elastic, horovod.common.exceptions as e\n'
        'assert e.HorovodInternalError is hvd.HorovodInternalError and elastic.run is hvd.elastic.run; '
        'assert hvd.mpi_ops.Sum is hvd.Sum and hvd.mpi_ops.allreduce is hvd.allreduce; '
        'hvd.init(); print("alias")'
    )
    assert python_bed.run_workers(python, 2, '-c', program, options=('--as', 'horovod')).count('alias') == 2


def places_of_names(python):
    """Scripts import from modules of Horovod's and BytePS's packages, too."""
    for package, program in (
        (
            'horovod',
            'from horovod.torch.mpi_ops import allreduce, poll; from horovod.common import util; '
            'assert util.gloo_built(verbose=True) and util.split_list([1, 2, 3], 2) == [[1, 2], [3]]; '
            'assert not util.gpu_available("torch") and util.num_rank_is_power_2(4); '
            'from horovod.common.process_sets import ProcessSet; from horovod.torch.compression import Compression; '
            'from horovod.torch.elastic import TorchState; from horovod.runner import run; '
            'from horovod.torch.elastic.sampler import ElasticSampler; '
            'from horovod.common.exceptions import HorovodInternalError; '
            'from horovod.torch.functions import broadcast_object; import horovod.torch as all; all.init(); '
            'assert horovod.torch is all and horovod.__version__',
        ),
        (
            'byteps',
            'from byteps.torch.ops import push_pull_async_inplace, poll, size; '
            'from byteps.torch.parallel.distributed import DistributedDataParallel; '
            'import byteps.torch.cross_barrier as all; '
            'all.init(); all.CrossBarrier, all.broadcast_parameters, all.Compression.fp16, all.local_rank()',
        ),
    ):
        python_bed.run_workers(python, 1, '-c', 'import %s; %s' % (package, program), options=('--as', package))


def gpus_of_engines(python):
    """However an engine was made, a tensor on another GPU than its own is refused."""
    python_bed.run([python, HERE + '/torch_gpu_cases.py'], python_bed.environment(TRIB_SURVIVE='workers'))


def function_in_workers(python):
    """horovod.run starts the workers itself."""
    program = (
        'import horovod, torch, horovod.torch as hvd\n'
        'def work(factor, plus):\n'
        '    hvd.init()\n'
        '    return hvd.allreduce(torch.ones(2) * factor, op=hvd.Sum).tolist(), hvd.rank() + plus\n'
        'assert horovod.run(work, (3,), {"plus": 10}, np=2) == [([6, 6], 10), ([6, 6], 11)]\n'
        'try:\n'
        '    horovod.run(lambda: 1 / 0, np=2)\n'
        'except RuntimeError as problem:\n'
        '    print("told:", problem)\n'
    )
    path = python_bed.SOURCE + '/api/python/tributary/alias/horovod'
    output = python_bed.run([python, '-c', program], python_bed.environment(path))
    assert 'told: run: a worker ended with status 1' in output, output[-1500:]


def main():
    python, reason = python_bed.interpreter('torch')
    if python is None:
        print('skip torch: ' + reason)
        return 77
    return run_cases(
        [
            ('alone', all_cases(python, 1)),
            ('two_workers', all_cases(python, 2)),
            ('three_and_a_server', all_cases(python, 3, '-s', '1')),
            ('backend', lambda: backend(python)),
            ('backend_without_an_import', lambda: backend_without_an_import(python)),
            ('backend_of_another_version', lambda: backend_of_another_version(python)),
            ('alias', lambda: horovod_and_byteps_names(python)),
            ('places_of_names', lambda: places_of_names(python)),
            ('gpus_of_engines', lambda: gpus_of_engines(python)),
            ('function_in_workers', lambda: function_in_workers(python)),
            ('example', lambda: python_bed.example_learns(python, 'train_torch.py')),
        ]
    )


if __name__ == '__main__':
    sys.exit(main())
