#!/usr/bin/env python3
"""tributary.jax with workers on this machine's processors. With TRIB_DEVICE=cuda they are on its GPUs, which they share
if there are fewer, and the interpreter must have a JAX for them. Prints `ok NAME` / `not ok NAME: why`, or one `skip
NAME: why` and exits with 77.
"""

import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_bed  # noqa: E402
from cases import PIPES, ends_of, job_settings, run_cases  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
# Our names of XLA's structs and fields beside XLA's own. XLA has renamed the first one, which its frames point to.
LAYOUT = {
    'xla_extension': (
        '__typeof__(*((XLA_FFI_CallFrame *)0)->extension_start)',
        {'type': 'type', 'next': 'next'},
    ),
    'xla_api_version': ('XLA_FFI_Api_Version', {'major': 'major_version', 'minor': 'minor_version'}),
    'xla_metadata': ('XLA_FFI_Metadata', {'api_version': 'api_version', 'traits': 'traits'}),
    'xla_metadata_extension': ('XLA_FFI_Metadata_Extension', {'metadata': 'metadata'}),
    'xla_buffer': ('XLA_FFI_Buffer', {'dtype': 'dtype', 'data': 'data', 'rank': 'rank', 'dims': 'dims'}),
    'xla_bytes': ('XLA_FFI_ByteSpan', {'bytes': 'ptr', 'length': 'len'}),
    'xla_scalar': ('XLA_FFI_Scalar', {'dtype': 'dtype', 'value': 'value'}),
    'xla_buffers': ('XLA_FFI_Args', {'count': 'size', 'kinds': 'types', 'buffers': 'args'}),
    'xla_attributes': ('XLA_FFI_Attrs', {'count': 'size', 'names': 'names', 'values': 'attrs'}),
    'xla_error_create_args': ('XLA_FFI_Error_Create_Args', {'message': 'message', 'code': 'errc'}),
    'xla_stream_get_args': ('XLA_FFI_Stream_Get_Args', {'context': 'ctx', 'stream': 'stream'}),
    'xla_future_args': ('XLA_FFI_Future_Create_Args', {'future': 'future'}),
    'xla_future_set_error_args': ('XLA_FFI_Future_SetError_Args', {'future': 'future', 'error': 'error'}),
    'xla_api': (
        'XLA_FFI_Api',
        {
            'error_create': 'XLA_FFI_Error_Create',
            'stream_get': 'XLA_FFI_Stream_Get',
            'future_create': 'XLA_FFI_Future_Create',
            'future_set_available': 'XLA_FFI_Future_SetAvailable',
            'future_set_error': 'XLA_FFI_Future_SetError',
        },
    ),
    'xla_call': (
        'XLA_FFI_CallFrame',
        {
            'extensions': 'extension_start',
            'api': 'api',
            'context': 'ctx',
            'stage': 'stage',
            'args': 'args',
            'results': 'rets',
            'attributes': 'attrs',
            'future': 'future',
        },
    ),
}


WAITS = '''
import jax, jax.numpy as jnp
import tributary.jax as trib
trib.init()
compiled = jax.jit(lambda array, name: trib.allreduce(array, name=name), static_argnames='name')
compiled(jnp.ones(3), name='of all').block_until_ready()
interrupted(trib.rank(), lambda name: compiled(jnp.ones(3), name=name).block_until_ready())
'''


def layout_is_xlas(python):
    include = subprocess.run(
        [python, '-c', 'import jax; print(jax.ffi.include_dir())'], capture_output=True, text=True, check=True
    ).stdout
    lines = [
        '#include <stddef.h>',
        '#include "native/xla_ffi.h"',
        '#include "xla/ffi/api/c_api.h"',
        'int main(void) { return 0; }',
    ]
    for ours, (theirs, fields) in LAYOUT.items():
        for mine, other in fields.items():
            lines.append(
                '_Static_assert(offsetof(struct %s, %s) == offsetof(%s, %s), "%s.%s");'
                % (ours, mine, theirs, other, ours, mine)
            )
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + '/layout.c', 'w', encoding='ascii') as file:
            file.write('\n'.join(lines) + '\n')
        python_bed.run(
            [
                'gcc',
                '-std=gnu11',
                '-I',
                python_bed.SOURCE + '/api/python',
                '-I',
                include.strip(),
                '-fsyntax-only',
                folder + '/layout.c',
            ],
            os.environ,
        )


def on_processors(python, workers, names, options, devices):
    flags = '--xla_force_host_platform_device_count=%d' % devices
    settings = dict(JAX_PLATFORMS='cpu', XLA_FLAGS=flags)
    return python_bed.run_workers(python, workers, HERE + '/jax_cases.py', *names, options=options, **settings)


def gpus():
    return subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True, check=True).stdout.splitlines()


def on_gpus(python, workers, names, options, is_group):
    """Each worker has a GPU, alone if there are as many. is_group: the GPUs sum first."""
    place = '$TRIB_RANK' if is_group else '0'
    script = 'TRIB_DEVICE_RANK=%s CUDA_VISIBLE_DEVICES=$((TRIB_RANK %% %d)) exec "$0" "$@"' % (place, len(gpus()))
    settings = dict(TRIB_DEVICE='cuda', TRIB_DEVICE_COUNT=str(workers if is_group else 1))
    settings.update(JAX_PLATFORMS='cuda', XLA_PYTHON_CLIENT_PREALLOCATE='false')
    command = [script, python, HERE + '/jax_cases.py', *names]
    return python_bed.run_workers('sh', workers, '-c', *command, options=options, **settings)


def all_cases(python, workers, *options, devices=1, only=(), is_group=False):
    if os.environ.get('TRIB_DEVICE') == 'cuda':
        output = on_gpus(python, workers, only, options, is_group)
    else:
        output = on_processors(python, workers, only, options, devices)
    assert output.count('is right') == (len(only) or 20) * workers, output[-1500:]


def goes_on_in_the_process(python):
    """A worker joins a job of two, and another one is lost. The programs are compiled anew after each change."""
    env = python_bed.environment(**job_settings(2, TRIB_SURVIVE='workers'), JAX_PLATFORMS='cpu')
    command = [python, HERE + '/elastic_jax_cases.py']
    workers = [subprocess.Popen(command, env=dict(env, TRIB_RANK=rank), **PIPES) for rank in ('0', '1', '-1')]
    try:
        output = ''.join(output for _, output in ends_of(workers, python_bed.TIMEOUT))
        assert output.count('of 2 is right, three: True') == 2, output[-2500:]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def main():
    python, reason = python_bed.interpreter('jax')
    if python is None:
        print('skip jax: ' + reason)
        return 77
    cases = [
        ('layout', lambda: layout_is_xlas(python)),
        ('alone', lambda: all_cases(python, 1, devices=2)),
        ('two_and_a_server', lambda: all_cases(python, 2, '-s', '1')),
        ('three_workers', lambda: all_cases(python, 3)),
        ('goes_on', lambda: goes_on_in_the_process(python)),
        ('ctrl_c', lambda: python_bed.ctrl_c_ends_waits(python, WAITS, JAX_PLATFORMS='cpu')),
    ]
    if os.environ.get('TRIB_DEVICE') == 'cuda' and len(gpus()) > 1:
        group = ['reductions', 'transformed', 'gathers_in_programs', 'derivatives', 'trains', 'functions_in_programs']
        cases.append(('two_in_a_group', lambda: all_cases(python, 2, only=group, is_group=True)))
    if os.environ.get('TRIB_DEVICE') != 'cuda':
        cases.append(('example', lambda: python_bed.example_learns(python, 'train_jax.py', JAX_PLATFORMS='cpu')))
    return run_cases(cases)


if __name__ == '__main__':
    sys.exit(main())
