#!/usr/bin/env python3
"""Records jobs in virtual time, where the same job can also run with another rate, size or number of machines. Compares
the predictions of `tributary replay` with such runs, searches with `tributary tune`, and replays a real job live.

Prints `ok NAME` / `not ok NAME: why` / `skip NAME: why`.
"""

import fcntl
import glob
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import run_cases  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
TOOL = os.path.abspath(BUILD + '/tributary')
FOLDER = tempfile.mkdtemp(prefix='trib_replay')
MODEL = FOLDER + '/small.csv'
TENSORS = [(300000, 1000), (1200000, 3000), (40000, 4500), (2500000, 5000), (10, 5500), (800000, 6000)]


def write_model():
    with open(MODEL, 'w') as out:
        out.write('# small: made up; forward 4000 us, backward 6000 us, optimizer 1000 us\ntensor,elements,ready_us\n')
        for index, (elements, ready) in enumerate(TENSORS):
            out.write('layer%d,%d,%d\n' % (index, elements, ready))


def run(*words, status=0, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
    env.update(more)
    done = subprocess.run(
        [TOOL, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=150
    )
    assert done.returncode == status, '%s: status %d: %s' % (
        words[0],
        done.returncode,
        (done.stdout + done.stderr)[-600:],
    )
    return done.stdout if status == 0 else done.stderr


def sim(*words, model=MODEL):
    return json.loads(run('sim', '--model', model, '--iters', '5', '--quiet', '--json', *words))['step_ms']


def recorded(name, *words, model=MODEL):
    """Returns the traces of a job in virtual time, and its step time."""
    step = sim('--trace', '%s/%s' % (FOLDER, name), *words, model=model)
    return sorted(glob.glob('%s/%s/*' % (FOLDER, name))), step


def replay(files, *words):
    return json.loads(run('replay', '--quiet', '--json', *words, *files))


def near(value, wanted, percent, what):
    assert abs(value / wanted - 1) <= percent / 100, '%s: %.3f ms, in truth %.3f ms' % (what, value, wanted)


def as_it_was():
    for name, words in (
        ('plain', ['-n', '3', '-s', '1', '--rate', '2gbit']),
        ('colocated', ['-n', '4', '-s', '0', '--rate', '5gbit']),
        ('no priorities', ['-n', '2', '-s', '2', '--rate', '2gbit', '--no-priorities']),
    ):
        files, step = recorded(name, *words)
        said = replay(files)
        near(said['recorded']['step_ms'], step, 1, name + ', recorded')
        near(said['recorded']['compute_ms'], 11, 1, name + ', computing')
        near(said['replayed']['step_ms'], step, 5, name + ', replayed')
        assert said['recorded']['rate_estimated'] and 'predicted' not in said, said
        near(said['recorded']['rate_bits'] / 1e9, float(words[5][0]), 6, name + ', rate')


def other_worlds():
    files, _ = recorded('base', '-n', '3', '-s', '1', '--rate', '2gbit')
    known = ['--recorded-rate', '2gbit']
    for change in (
        ['--rate', '5gbit'],
        ['--rate', '1gbit'],
        ['-s', '3'],
        ['-s', '0'],
        ['-n', '6'],
        ['--codec', '0.5'],
        ['--partition', '256K', '--chunk', '64K'],
        ['--credit', '8M'],
        ['--no-priorities'],
        ['--cross-barrier'],
        ['-n', '4', '-s', '2', '--rate', '10gbit', '--partition', '2M'],
    ):
        words = ['-n', '3', '-s', '1', '--rate', '2gbit'] + change
        if '-n' in change:
            words = words[2:] if '-s' not in change else words[4:]
        truth = sim(*words)
        said = replay(files, *known, *change)
        near(said['predicted']['step_ms'], truth, 5, ' '.join(change))
        assert said['changes'].split(', ')[0] == ' '.join(change[:2]), said['changes']
        assert sum(said['predicted']['partition_ms'].values()) > 0, said


def what_priorities_cost():
    """A dedicated server beside workers that sum and compute at different times: the recording shows the cost, too."""
    where = ['-n', '3', '-s', '1', '--rate', '1gbit']
    step = {}
    for skew in ('0s', '1ms'):
        files, step[skew] = recorded('skew ' + skew, *where, '--skew', skew, model='resnet50')
        step[skew + ' plain'] = sim(*where, '--skew', skew, '--no-priorities', model='resnet50')
    assert 1.003 < step['1ms'] / step['1ms plain'] < 1.02 and step['0s'] < step['1ms'], step
    said = replay(files, '--recorded-rate', '1gbit', '--no-priorities')
    near(said['replayed']['step_ms'], step['1ms'], 0.6, 'with priorities')
    near(said['predicted']['step_ms'], step['1ms plain'], 0.6, 'without')


def machines():
    """Workers share machines and links. Those of a machine sum first, or each pushes its own contribution."""
    where = ['-n', '4', '-s', '1', '--rate', '2gbit', '--per-machine', '2']
    truth = {when: sim(*where, '--local-sum', when) for when in ('on', 'off')}
    assert truth['on'] < 0.8 * truth['off'], truth
    for when, other in (('on', 'off'), ('off', 'on')):
        files, step = recorded('machines ' + when, *where, '--local-sum', when)
        said = replay(files, '--local-sum', other)
        assert (said['recorded']['per_machine'], said['recorded']['local_sum']) == (2, 2 if when == 'on' else 0), said
        near(said['recorded']['rate_bits'] / 1e9, 2, 6, when + ', rate')
        near(said['replayed']['step_ms'], step, 5, 'machines that sum first: ' + when)
        near(
            said['predicted']['step_ms'],
            truth[other],
            5,
            'machines that sum first: %s, recorded with %s' % (other, when),
        )
        parts = said['replayed' if when == 'on' else 'predicted']['partition_ms']
        assert parts['near'] > 0 and parts['part'] > 0 and parts['hand'] > 0, parts
        known = ['--recorded-rate', '2gbit', '--local-sum', when]
        near(
            replay(files, *known, '-n', '8', '--per-machine', '4', '--rate', '5gbit')['predicted']['step_ms'],
            sim('-n', '8', '-s', '1', '--rate', '5gbit', '--per-machine', '4', '--local-sum', when),
            5,
            '4 on a machine, ' + when,
        )
        near(
            replay(files, *known, '--per-machine', '1')['predicted']['step_ms'],
            sim(*where[:-2]),
            5,
            'one on a machine, ' + when,
        )
    text = run('trace', *files)
    assert '3 machines; every worker pushes its own' in text and 'rank 0 + 1' in text, text
    assert 'cannot be 3 on each machine' in run('replay', '--per-machine', '3', *files, status=1)


def hosts_of_one_machine():
    """Links between namespaces of one machine cost processor time: 1 ns a byte, with sending and receiving."""
    # Two workers: each pushes one half and sends back the other half's sum.
    sent_ms = 2 * sum(4 * elements for elements, _ in TENSORS) / 1e6
    words = ['-n', '2', '-s', '0', '--cores', '1']
    apart = sim('--rate', '40gbit', *words)
    files, step = recorded('namespaces', '--one-machine', '--rate', '40gbit', *words)
    assert step > 11 + 0.9 * sent_ms, 'a step takes %.2f ms, its bytes alone %.2f ms of the one core' % (step, sent_ms)
    assert apart < 0.8 * step, (apart, step)
    near(
        replay(files, '--cores', '1', '--recorded-rate', '40gbit', '--rate', '20gbit')['predicted']['step_ms'],
        sim('--one-machine', '--rate', '20gbit', *words),
        3,
        'on one core',
    )
    faster = replay(files, '--cores', '1', '--recorded-rate', '40gbit', '--many-machines', '--rate', '40gbit')[
        'predicted'
    ]['simulated_ms']
    near(faster, apart, 5, 'on machines of their own')


def one_host():
    """No link is between the members, and tensors are cut as on one machine."""
    files, step = recorded('one host', '-n', '3', '-s', '0', '--per-machine', '3')
    # Single steps differ by a few percent here, so the median is that of many.
    said = replay(files, '--per-machine', '1', '--rate', '10gbit', '--iters', '20')
    assert said['recorded']['one_host'] and said['replayed']['t_opt_ms'] == 0 and said['replayed']['wire_bytes'] == 0, (
        said
    )
    near(said['replayed']['step_ms'], step, 2, 'one host')
    near(said['predicted']['step_ms'], sim('-n', '3', '-s', '0', '--rate', '10gbit'), 5, 'each on a machine of its own')
    assert 'all members are on one machine' in run('trace', *files)
    files, _ = recorded('slow memory', '-n', '3', '-s', '0', '--per-machine', '3', '--local-rate', '1gbit')
    limits = [json.loads(run('trace', '--json', *files))['limit'], replay(files)['replayed']['limit']]
    assert limits == ['shared memory'] * 2, limits


def steps_that_overlap():
    files, step = recorded('overlap', '-n', '3', '-s', '1', '--rate', '2gbit', '--cross-barrier')
    # Forward, optimizer, and the first gradient's part of backward.
    known = ['--recorded-rate', '2gbit', '--recorded-forward', '6ms']
    said = replay(files, *known, '--rate', '20gbit')
    assert said['recorded']['overlapped'], said
    near(said['replayed']['step_ms'], step, 5, 'overlapped')
    near(
        said['predicted']['step_ms'],
        sim('-n', '3', '-s', '1', '--rate', '20gbit', '--cross-barrier'),
        5,
        'overlapped, at another rate',
    )


def exported():
    files, step = recorded('export', '-n', '3', '-s', '1', '--rate', '2gbit')
    path = FOLDER + '/exported.csv'
    replay(files, '--export', path)
    again = json.loads(run('sim', '--model', path, '-n', '3', '-s', '1', '--rate', '2gbit', '--quiet', '--json'))
    near(again['step_ms'], step, 5, 'exported')
    assert again['bytes'] == 4 * sum(elements for elements, _ in TENSORS)


def tuned():
    # Chunks are so small that messages cost more than their bytes, and one is sent at a time, so tuning can improve a
    # lot.
    files, step = recorded(
        'slow',
        '-n',
        '3',
        '-s',
        '3',
        '--rate',
        '10gbit',
        '--credit',
        '4K',
        '--chunk',
        '4K',
        '--partition',
        '8M',
        '--latency',
        '100us',
    )
    first = run('tune', '--quiet', '--json', '--recorded-rate', '10gbit', '--latency', '100us', *files)
    said = json.loads(first)
    near(said['now_ms'], step, 5, 'before')
    assert said['best_ms'] < 0.9 * said['now_ms'], said
    assert list(said['settings']) == ['credit', 'partition', 'chunk', 'priorities', 'colocate', 'local sum'], said[
        'settings'
    ]
    changed = {k: v for k, v in said['settings'].items() if v['now'] != v['best']}
    assert changed and all(v['gain_ms'] >= 0 for v in said['settings'].values()), said['settings']
    assert len(said['beyond']) >= 3, said['beyond']
    assert first == run('tune', '--quiet', '--json', '--recorded-rate', '10gbit', '--latency', '100us', *files), (
        'two runs differ'
    )
    words = [w for k in ('credit', 'partition', 'chunk') for w in ('--' + k, said['settings'][k]['best'])]
    if said['settings']['priorities']['best'] == 'none':
        words.append('--no-priorities')
    words += ['--colocate', said['settings']['colocate']['best']]
    better = replay(files, '--recorded-rate', '10gbit', '--latency', '100us', '--iters', '2', *words)
    near(better['predicted']['simulated_ms'], said['best_ms'], 1, 'the best, replayed')
    text = run('tune', '--recorded-rate', '10gbit', '--latency', '100us', '--codecs', *files)
    assert 'TRIB_PUSH_CREDIT=' in text and 'beyond settings' in text, text
    assert 'int8,ef=vanilla,two_way' in text and '8.0 bits an element in place of 32, sums too' in text, text


def tuned_priorities():
    """No variable sets priorities, so the text says that the program must change them."""
    many = FOLDER + '/many.csv'
    with open(many, 'w') as out:
        out.write('# many: made up; forward 20000 us, backward 30000 us, optimizer 0 us\ntensor,elements,ready_us\n')
        out.writelines('t%d,2000,%d\n' % (i, i * 20) for i in range(1500))
    files, _ = recorded('many', '-n', '3', '-s', '1', '--rate', '1gbit', '--cores', '1', model=many)
    said = json.loads(run('tune', '--quiet', '--json', *files))['settings']['priorities']
    assert said['best'] == 'none' and said['gain_ms'] > 0, said
    assert "priorities are the program's" in run('tune', '--quiet', *files)
    assert "priorities are the program's" not in run('tune', '--quiet', '--no-priorities', *files)


def on_a_narrow_terminal():
    """Each progress text overwrites the last one on its line, so it must fit the terminal."""
    files, _ = recorded('narrow', '-n', '2', '-s', '1')
    for columns in (80, 40):
        pid, terminal = pty.fork()
        if pid == 0:
            fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
            os.execv(TOOL, [TOOL, 'tune', '--json', *files])
        said = b''
        while True:
            try:
                said += os.read(terminal, 65536)
            except OSError:
                break
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
        shown = [line for line in said.split(b'{')[0].replace(b'\n', b'\r').split(b'\r') if line]
        assert len(shown) > 5 and max(map(len, shown)) < columns, shown


def live():
    run(
        'run',
        '-n',
        '2',
        '-s',
        '1',
        '--',
        TOOL,
        'step',
        '--model',
        MODEL,
        '--iters',
        '4',
        TRIB_TRACE=FOLDER + '/real-%r',
    )
    files = sorted(glob.glob(FOLDER + '/real-*'))
    said = json.loads(run('replay', '--live', '--json', '--iters', '3', '-s', '0', '--partition', '512K', *files))
    assert (said['workers'], said['servers'], said['iterations']) == (2, 0, 3), said
    assert (
        said['bytes'] == 4 * sum(elements for elements, _ in TENSORS) and said['step_ms'] >= said['compute_ms'] * 0.99
    ), said
    replay(files, '-n', '5')


# Bytes that the busiest link carries one way, of all slices' bytes, in a job of three workers that sum: the least, and
# the most. The root of a broadcast gives its own partitions to two others.
BOUNDS = {
    'broadcast': (1, 2),
    'reduce': (1, 2),
    'all_gather': (2 / 3, 2 / 3),
    'reduce_scatter': (2 / 3, 2 / 3),
    'all_to_all': (2 / 9, 2 / 9),
}


def other_collectives():
    """A recorded job on one machine is predicted for slow links: the bytes of each collective are the limit there."""
    for op, shares in BOUNDS.items():
        run('bench', '-n', '3', '--op', op, '--sizes', '4M', '--iters', '5', TRIB_TRACE='%s/%s.%%r' % (FOLDER, op))
        files = sorted(glob.glob('%s/%s.*' % (FOLDER, op)))
        assert len(files) == 3 and 'operations (0 failed)' in run('trace', *files), files
        said = replay(files, '--per-machine', '1', '--rate', '1gbit')
        least, most = (share * said['recorded']['bytes'] * 8 / 1e6 / 0.956 for share in shares)
        waiting = said['predicted']['simulated_ms'] - said['predicted']['compute_ms']
        assert 0.99 * least <= waiting <= 1.25 * most, '%s: %.1f ms, bound %.1f ms' % (op, waiting, least)
        assert said['predicted']['t_opt_ms'] == 0, said
        assert 'neither --live nor --export' in run('replay', '--export', FOLDER + '/no.csv', *files, status=1)


# Slices of lengths of their own, one of them empty; a group of two that counts backwards; a step has seven operations.
EVERY = """
import array, sys, tributary
from tributary import _abi as abi
from tributary.engine import Engine
from tributary._library import lib
engine = Engine()
rank, F = engine.rank, abi.TRIB_FLOAT32
space = [array.array('f', bytes(4 * 400000)) for _ in range(2)]
at = [s.buffer_info()[0] for s in space]
slices = [100000, 0, 50001]
pairs = [[1000 * i + 300 * j for j in range(3)] for i in range(3)]
tensors = [(lib.trib_push_pull, engine.declare_once('sum', F, 200000)),
           (lib.trib_broadcast, engine.declare_once('given', F, 30000)),
           (lib.trib_reduce_to, engine.declare_once('one', F, 60000)),
           (lib.trib_all_gather, engine.declare_once('gathered', F, slices[rank], layout=abi.TRIB_SLICES)),
           (lib.trib_reduce_scatter, engine.declare_once('scattered', F, slices[rank], layout=abi.TRIB_SLICES)),
           (lib.trib_all_to_all, engine.declare_once('exchanged', F, layout=abi.TRIB_PAIRS, splits=pairs[rank]))]
if rank > 0:
    group = engine.group('few', [2, 1])
    tensors.append((lib.trib_all_gather, group.declare_once('gathered', F, 1000 * rank, layout=abi.TRIB_SLICES)))
for _ in range(6):
    for function, tensor in tensors:
        tensor.submit(function, at[0], at[1], space, root=1, output_bytes=1600000).wait()
    engine.barrier()
engine.close()
"""


def every_collective():
    run(
        'run',
        '-n',
        '3',
        '--',
        sys.executable,
        '-c',
        EVERY,
        TRIB_TRACE=FOLDER + '/every.%r',
        LD_LIBRARY_PATH=BUILD,
        PYTHONPATH='api/python',
    )
    files = sorted(glob.glob(FOLDER + '/every.*'))
    said = replay(files, '--per-machine', '1', '--rate', '1gbit')
    assert (said['recorded']['tensors'], said['recorded']['workers']) == (6, 3), said['recorded']
    slower = replay(files, '--per-machine', '1', '--rate', '100mbit')['predicted']
    waiting = [each['simulated_ms'] - each['compute_ms'] for each in (said['predicted'], slower)]
    # Rank 2 sends its slice to both others, and its part of what all scatter.
    assert slower['wire_bytes'] > 4 * (2 * 50001 + 100000), slower
    assert 0.7 * slower['wire_bytes'] * 8 / 1e5 < waiting[1] < 2 * slower['wire_bytes'] * 8 / 1e5, (
        waiting,
        slower['wire_bytes'],
    )
    assert waiting[1] > 5 * waiting[0], waiting
    assert 'as many workers' in run('replay', '-n', '4', '--per-machine', '1', *files, status=1)
    assert 'give the traces of all workers' in run('replay', *files[:2], status=1)


def what_cannot_be():
    files, _ = recorded('errors', '-n', '2', '-s', '1')
    assert 'must be a rate from 1kbit' in run('replay', '--rate', 'fast', *files, status=2)
    assert 'too long to replay' in run('replay', '--rate', '1kbit', *files, status=1)
    assert 'multiple of chunk_bytes' in run('replay', '--partition', '96K', '--chunk', '64K', *files, status=1)
    assert 'colocate is off' in run('replay', '-s', '0', '--colocate', 'off', *files, status=1)
    assert 'which traces' in run('tune', status=2)
    assert 'no steps' in run('replay', *[f for f in files if 'server' in f], status=1)
    workers = [f for f in files if 'server' not in f]
    assert 'give --recorded-rate' in run('replay', *workers, status=1)
    replay(workers, '--recorded-rate', '10gbit')
    assert 'not a trace' in run('tune', __file__, status=1)


def main():
    cases = [
        as_it_was,
        other_worlds,
        what_priorities_cost,
        machines,
        hosts_of_one_machine,
        one_host,
        steps_that_overlap,
        exported,
        tuned,
        tuned_priorities,
        on_a_narrow_terminal,
        live,
        other_collectives,
        every_collective,
        what_cannot_be,
    ]
    try:
        write_model()
        return run_cases([(case.__name__, case) for case in cases])
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
