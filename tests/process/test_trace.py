#!/usr/bin/env python3
"""Records real jobs and reads their traces with `tributary trace`. Checks the summary, the event format of Perfetto and
chrome://tracing, and the errors for files that do not fit.

Prints `ok NAME` / `not ok NAME: why` / `skip NAME: why`.
"""

import collections
import glob
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import comes_true, run_cases  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
TOOL = os.path.abspath(BUILD + '/tributary')
FOLDER = tempfile.mkdtemp(prefix='trib_trace')
WORKERS, SERVERS = 3, 1
MODEL = """# small: made up; forward 4000 us, backward 6000 us, optimizer 1000 us
tensor,elements,ready_us
head,300000,1000
middle,700000,3000
"q"ä,1000,4500
embedding,1500000,6000
"""


def run(*words, status=0, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
    env.update(more)
    done = subprocess.run(
        [TOOL, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert done.returncode == status, '%s: status %d: %s' % (
        words[0],
        done.returncode,
        (done.stdout + done.stderr)[-600:],
    )
    return done.stdout if status == 0 else done.stderr


def record(name, *words, program=(TOOL,)):
    """Returns the trace files of a job of that program."""
    run('run', '-n', str(WORKERS), '-s', str(SERVERS), '--', *program, *words, TRIB_TRACE='%s/%s-%%r' % (FOLDER, name))
    files = sorted(glob.glob('%s/%s-*' % (FOLDER, name)))
    assert len(files) == WORKERS + SERVERS, files
    return files


def job():
    """Returns the files of a recorded job of training steps, recorded once."""
    if not hasattr(job, 'files'):
        path = FOLDER + '/small.csv'
        with open(path, 'w') as out:
            out.write(MODEL)
        job.files = record('steps', 'step', '--model', path, '--iters', '6')
    return job.files


def summary():
    said = json.loads(run('trace', '--json', *job()))
    steps = said['steps']
    assert (said['workers'], said['servers'], said['failed'], said['notes']) == (WORKERS, SERVERS, 0, []), said
    assert steps['count'] >= 5 and steps['operations'] == 4 and steps['bytes'] == 4 * 2501000, steps
    assert not steps['overlapped'] and steps['step_ms'] >= 11 and steps['exchange_ms'] < steps['step_ms'], steps
    assert steps['gap_ms'] >= 4.9, steps  # forward and optimizer
    phases = said['phases']
    whole = sum(p['total_ms'] for p in phases.values())
    stages = sum(s['total_ms'] for s in said['stages'].values())
    assert list(phases) == ['turn', 'credit', 'push', 'near', 'part', 'peers', 'pull', 'hand'] and list(
        said['stages']
    ) == ['COMPRESS', 'PUSH', 'PULL', 'DECOMPRESS'], (list(phases), list(said['stages']))
    assert (
        sum(phases[p]['total_ms'] for p in ('near', 'part', 'hand')) == 0
        and said['one_host']
        and steps['t_opt_ms'] == 0
    ), said
    assert abs(whole - stages) <= 1e-3 * whole, (whole, stages)
    assert all(p['total_ms'] >= 0 for p in phases.values()), phases
    sums = {m['member']: m for m in said['members']}
    assert sums['server 0']['in_bytes'] == sums['server 0']['out_bytes'] == said['bytes_summed'], sums
    text = run('trace', *job())
    for words in (
        '3 workers + 1 server over',
        'other partitions go first on its link',
        'on its way to the server\n',
        'server 0',
        'limit: ',
    ):
        assert words in text, text


def check_event(event, threads):
    assert set(event) <= {'ph', 'pid', 'tid', 'ts', 'dur', 'name', 'cat', 'id', 'args', 'bp', 's'}, event
    assert isinstance(event['ph'], str) and len(event['ph']) == 1 and event['ph'] in 'MXbeisf', event
    assert isinstance(event['pid'], int) and isinstance(event['tid'], int), event
    assert isinstance(event['ts'], (int, float)) and event['ts'] >= 0, event
    assert isinstance(event['name'], str) and event['name'], event
    if event['ph'] == 'X':
        assert event['dur'] >= 0, event
        assert (event['pid'], event['tid']) in threads, event
    if event['ph'] in 'besf':
        assert 'id' in event and event['cat'], event
    if event['ph'] == 'i':
        assert event['s'] in 'tpg', event


def check_pairs(events):
    """Asynchronous events begin and end once, in this order."""
    open_pairs = {}
    pairs = 0
    for event in events:
        key = (event.get('cat'), event.get('id'), event['pid'])
        if event['ph'] == 'b':
            assert key not in open_pairs, event
            open_pairs[key] = event
        elif event['ph'] == 'e':
            begin = open_pairs.pop(key)
            assert begin['name'] == event['name'] and begin['ts'] <= event['ts'], (begin, event)
            pairs += 1
    assert not open_pairs and pairs > 0, list(open_pairs.values())[:3]


def check_slices(slices):
    lanes = collections.defaultdict(list)
    for one in slices:
        lanes[one['pid'], one['tid']].append((one['ts'], one['ts'] + one['dur']))
    for lane, times in lanes.items():
        times.sort()
        for (_, end), (begin, _) in zip(times, times[1:]):
            assert begin >= end - 0.0015, (lane, end, begin)  # three decimals
    return lanes


def check_arrows(events, lanes, tolerance_us):
    starts = {e['id']: e for e in events if e['ph'] == 's'}
    ends = [e for e in events if e['ph'] == 'f']
    assert len(starts) == len(ends) > 0
    for end in ends:
        start = starts.pop(end['id'])
        assert start['ts'] <= end['ts'] + tolerance_us, (start, end)  # a push leaves before it is part of a sum
        for one in (start, end):
            assert any(a - 0.0015 <= one['ts'] <= b + 0.0015 for a, b in lanes[one['pid'], one['tid']]), one
    return len(ends)


def chrome():
    path = FOLDER + '/chrome.json'
    said = json.loads(run('trace', '--json', '--chrome', path, *job()))
    with open(path, encoding='utf-8') as made:
        whole = json.load(made)
    events = whole['traceEvents']
    names = {e['pid']: e['args']['name'] for e in events if e['ph'] == 'M' and e['name'] == 'process_name'}
    threads = {(e['pid'], e['tid']) for e in events if e['ph'] == 'M' and e['name'] == 'thread_name'}
    assert sorted(n.split(' (')[0] for n in names.values()) == ['rank 0', 'rank 1', 'rank 2', 'server 0'], names
    for event in events:
        check_event(event, threads)
        assert event['pid'] in names, event
    check_pairs(events)
    lanes = check_slices([e for e in events if e['ph'] == 'X'])
    tolerance = sum(sorted(p['clock_error_us'] for p in said['processes'])[-2:])
    arrows = check_arrows(events, lanes, tolerance)
    # One arrow for each worker's partition: 2 + 3 + 1 + 6 of 1 MiB, in each of the 7 steps.
    assert arrows >= 0.9 * WORKERS * 12 * 7, arrows
    assert any(e['name'] == '"q"ä' for e in events), 'a name was lost'
    operations = [e for e in events if e['ph'] == 'b' and e['cat'] == 'operation']
    assert len(operations) == said['operations'], (len(operations), said['operations'])
    assert said['early_arrivals'] == 0 and said['arrivals'] > 0, said


def some_of_the_files():
    servers = [f for f in job() if 'server' in f]
    said = json.loads(run('trace', '--json', *[f for f in job() if f not in servers]))
    assert said['notes'] == ['there is no trace of server 0'] and said['arrivals'] == 0, said['notes']
    said = json.loads(run('trace', '--json', *servers))
    assert said['steps'] is None and said['limit'] == 'none', said


def files_that_do_not_fit():
    other = record('other', 'bench', '--sizes', '64K', '--iters', '5')
    assert 'is of job' in run('trace', job()[0], other[1], status=1)
    assert 'are both of rank 1' in run('trace', job()[1], job()[1], status=1)
    with open(job()[0], 'rb') as whole:
        data = whole.read()
    cut = FOLDER + '/cut'
    with open(cut, 'wb') as out:
        out.write(data[:-100])
    assert 'it was cut off' in run('trace', cut, status=1)
    with open(cut, 'wb') as out:
        out.write(data[:1000] + bytes([data[1000] ^ 8]) + data[1001:])
    assert 'checksum is wrong' in run('trace', cut, status=1)
    assert 'not a trace' in run('trace', __file__, status=1)
    assert 'No such file' in run('trace', '/nowhere', status=1)
    pipe, long = FOLDER + '/pipe', FOLDER + '/long'
    os.mkfifo(pipe)
    assert 'not a file' in run('trace', pipe, status=1)
    for name, first in ((long, b''), (long, data)):  # 2 TiB without stored data; nothing of it may be read
        with open(name, 'wb') as out:
            out.write(first)
            out.truncate(1 << 41)
        assert ('something was added' if first else 'not a trace') in run('trace', name, status=1)
    os.unlink(long)
    assert 'which files' in run('trace', status=2)
    assert 'cannot write /nowhere/at/all' in run('trace', '--quiet', '--chrome', '/nowhere/at/all', *job(), status=1)


def a_job_that_failed():
    """A worker leaves early, and the others' steps fail. Their recordings are complete all the same."""
    job()
    script = 'iters=40; [ "$TRIB_RANK" = 1 ] && iters=3; exec %s step --model %s/small.csv --iters $iters' % (
        TOOL,
        FOLDER,
    )
    run(
        'run',
        '-n',
        str(WORKERS),
        '-s',
        str(SERVERS),
        '--',
        'sh',
        '-c',
        script,
        status=1,
        TRIB_TRACE=FOLDER + '/failed-%r',
    )
    files = sorted(glob.glob(FOLDER + '/failed-*'))
    assert len(files) == WORKERS + SERVERS, files
    said = json.loads(run('trace', '--json', *files))
    assert said['notes'] == [] and said['failed'] > 0 and said['operations'] > said['failed'], said


def nowhere_to_print():
    """A command whose output cannot be written fails."""
    job()
    for words in (
        ['trace', *job()],
        ['trace', '--json', *job()],
        ['replay', '--json', '--quiet', *job()],
        ['tune', '--quiet', *job()],
        ['sim', '--model', FOLDER + '/small.csv', '-n', '2', '--json', '--quiet'],
        ['info'],
        ['--version'],
        ['--help'],
    ):
        with open('/dev/full', 'w') as full:
            done = subprocess.run(
                [TOOL, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
            )
        assert done.returncode == 1 and 'No space left' in done.stderr, '%s: %d: %s' % (
            words[:2],
            done.returncode,
            done.stderr,
        )


def no_part_is_left():
    """A partly written file is reported and removed. A device such as /dev/full stays."""
    path = FOLDER + '/cut.json'
    done = subprocess.run(
        [TOOL, 'trace', '--quiet', '--chrome', path, *job()],
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
        restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert (
        done.returncode == 1
        and 'cannot write %s: File too large (what was written of it is removed)' % path in done.stderr
    ), done
    assert not os.path.exists(path), path
    assert 'cannot write /dev/full: No space left on device\n' in run(
        'trace', '--quiet', '--chrome', '/dev/full', *job(), status=1
    )
    assert os.path.exists('/dev/full')


def recordings_are_kept():
    """An output option without a path takes the first recording as its path. The recording must not be overwritten."""
    kept = FOLDER + '/kept'
    shutil.copy(job()[0], kept)
    for words in (['trace', '--chrome'], ['replay', '--export'], ['replay', '--live', '--export']):
        said = run(*words, kept, *job(), status=1)
        assert 'it is a trace; which file shall be written?' in said, said
        with open(kept, 'rb') as there, open(job()[0], 'rb') as recorded:
            assert there.read() == recorded.read(), words
    run('trace', '--quiet', '--chrome', FOLDER + '/twice.json', *job())
    run('trace', '--quiet', '--chrome', FOLDER + '/twice.json', *job())


def virtual_time_without_room():
    """In virtual time, too, a command fails if it cannot write its traces."""
    job()
    limited = 'trap "" XFSZ; ulimit -f 1; exec "$@"'
    done = subprocess.run(
        [
            'sh',
            '-c',
            limited,
            'sh',
            TOOL,
            'sim',
            '--model',
            FOLDER + '/small.csv',
            '-n',
            '2',
            '--iters',
            '1',
            '--quiet',
            '--trace',
            FOLDER + '/no-room',
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and 'no trace: cannot write' in done.stderr and 'File too large' in done.stderr, done
    assert os.listdir(FOLDER + '/no-room') == [], os.listdir(FOLDER + '/no-room')


def virtual_time():
    folder = FOLDER + '/virtual'
    path = FOLDER + '/small.csv'
    job()
    run('sim', '--model', path, '-n', '4', '-s', '2', '--iters', '3', '--quiet', '--json', '--trace', folder)
    said = json.loads(run('trace', '--json', *sorted(glob.glob(folder + '/*'))))
    assert said['transport'] == 'sim' and said['early_arrivals'] == 0 and said['notes'] == [], said
    assert said['steps']['count'] == 2 or said['steps']['count'] == 3, said['steps']


def machines_that_sum_first():
    """A worker pushes to its machine's relay, which pushes a partial sum. The sum returns the same way."""
    folder, path = FOLDER + '/machines', FOLDER + '/chrome-machines.json'
    job()
    run(
        'sim',
        '--model',
        FOLDER + '/small.csv',
        '-n',
        '4',
        '-s',
        '0',
        '--per-machine',
        '2',
        '--iters',
        '3',
        '--quiet',
        '--json',
        '--trace',
        folder,
    )
    said = json.loads(run('trace', '--json', '--chrome', path, *sorted(glob.glob(folder + '/*'))))
    assert said['local_sum'] == 2 and not said['one_host'] and said['notes'] == [] and said['early_arrivals'] == 0, said
    phases = said['phases']
    assert all(phases[p]['total_ms'] > 0 for p in ('push', 'near', 'part', 'peers', 'pull', 'hand')), phases
    assert (
        abs(sum(p['total_ms'] for p in phases.values()) / sum(s['total_ms'] for s in said['stages'].values()) - 1)
        < 1e-3
    ), phases
    links = {m['member']: m for m in said['members']}
    assert [links['rank %d' % i]['machine'] for i in range(4)] == [0, 0, 2, 2], links
    # A machine sends half of its bytes as partial sums, and the sums of the other half: one contribution, however many
    # workers.
    steps = said['operations'] / 4 / 4
    for rank in (0, 2):
        assert abs(links['rank %d' % rank]['out_bytes'] / (said['steps']['bytes'] * steps) - 1) < 0.1, links
    assert links['rank 1']['out_bytes'] == links['rank 3']['in_bytes'] == 0, links
    with open(path, encoding='utf-8') as made:
        events = json.load(made)['traceEvents']
    threads = {(e['pid'], e['tid']) for e in events if e['ph'] == 'M' and e['name'] == 'thread_name'}
    for event in events:
        check_event(event, threads)
    check_pairs(events)
    lanes = check_slices([e for e in events if e['ph'] == 'X'])
    check_arrows(events, lanes, sum(sorted(p['clock_error_us'] for p in said['processes'])[-2:]))
    assert {e['name'] for e in events if e['ph'] == 's'} == {'push', 'part'}, 'arrows'
    assert {'SUM handed on', 'part summed by all machines', 'SUM on its way'} <= {e.get('cat') for e in events}, (
        'categories'
    )


def clocks_apart():
    """Each process has a time namespace of its own, so the clocks are hundreds of hours apart, as on different
    hosts."""
    apart = ['unshare', '--time', '--fork', '--monotonic']
    if (
        subprocess.run(
            [*apart, '5', 'true'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        ).returncode
        != 0
    ):
        print('skip clocks_apart_in_truth: there are no namespaces of time here, or not for this user')
        return
    job()
    path, script = FOLDER + '/chrome-apart.json', 'exec %s $((TRIB_RANK * 1234567 + 77)) "$@"' % ' '.join(apart)
    files = record(
        'apart', 'sh', '-c', script, 'sh', TOOL, 'step', '--model', FOLDER + '/small.csv', '--iters', '6', program=[]
    )
    said = json.loads(run('trace', '--json', '--chrome', path, *files))
    assert said['early_arrivals'] == 0 and said['arrivals'] > 0 and said['failed'] == 0 and said['notes'] == [], said
    assert all(p['clock_error_us'] < 1e6 for p in said['processes']), said['processes']
    with open(path, encoding='utf-8') as made:
        events = json.load(made)['traceEvents']
    lanes = check_slices([e for e in events if e['ph'] == 'X'])
    check_arrows(events, lanes, sum(sorted(p['clock_error_us'] for p in said['processes'])[-2:]))
    assert max(e['ts'] for e in events if e['ph'] != 'M') < 600e6, 'the clocks were not aligned'


def killed_job_leaves_its_trace():
    """The trace is recorded for jobs that hang or crash. Killed processes leave it as it was a moment before, and no
    incomplete file. At Ctrl-C and SIGTERM the workers end by the signal, without a handler of the engine's."""
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        name = '%s/killed%d' % (FOLDER, number)
        env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
        words = [
            TOOL,
            'run',
            '-n',
            str(WORKERS),
            '-s',
            str(SERVERS),
            '--',
            TOOL,
            'bench',
            '--sizes',
            '64K',
            '--iters',
            '10000',
        ]
        child = subprocess.Popen(
            words, env=dict(env, TRIB_TRACE=name + '-%r'), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            assert comes_true(lambda: len(glob.glob(name + '-*')) == WORKERS + SERVERS), glob.glob(name + '-*')
        finally:
            child.send_signal(number)
            child.wait(timeout=60)
        assert comes_true(lambda: not glob.glob(name + '-*.part')), glob.glob(name + '-*')
        said = json.loads(run('trace', '--json', *sorted(glob.glob(name + '-*'))))
        assert (said['workers'], said['servers']) == (WORKERS, SERVERS), said
        assert len(said['processes']) == WORKERS + SERVERS and said['operations'] > 0, said


def main():
    cases = [
        summary,
        chrome,
        some_of_the_files,
        files_that_do_not_fit,
        a_job_that_failed,
        nowhere_to_print,
        no_part_is_left,
        recordings_are_kept,
        virtual_time_without_room,
        virtual_time,
        machines_that_sum_first,
        killed_job_leaves_its_trace,
        clocks_apart,
    ]
    try:
        return run_cases([(case.__name__, case) for case in cases])
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
