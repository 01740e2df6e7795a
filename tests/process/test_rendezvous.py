#!/usr/bin/env python3
"""Strangers at the launcher's port of an elastic job: they cost a bounded number of descriptors, and no line of theirs
is an error of the launcher's. Prints `ok NAME` / `not ok NAME: why`.
"""

import asyncio
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..'))
sys.path.insert(0, os.path.join(HERE, '../../api/python/tributary/launch'))
import rendezvous  # noqa: E402
from cases import run_cases  # noqa: E402

TOKEN = 'a token of this test'
STRANGERS = 300


async def opened():
    """Returns what listens, its port, and the faults that nobody has caught."""
    faults = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    place = rendezvous.Rendezvous(TOKEN, lambda worker, message: None)
    return place, await place.open('127.0.0.1'), faults


async def is_a_worker_heard(port):
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    mine = rendezvous.json.loads(await reader.readline())['number']
    said = {'number': 'n', 'worker': 1, 'proof': rendezvous.proof(TOKEN, 'worker', mine, 'n')}
    writer.write(rendezvous.json.dumps(said).encode() + b'\n')
    answer = await reader.readline()
    writer.close()
    return rendezvous.proof(TOKEN, 'launcher', mine, 'n').encode() in answer


async def crowd():
    place, port, _ = await opened()
    strangers = [await asyncio.open_connection('127.0.0.1', port) for _ in range(STRANGERS)]
    for reader, _ in strangers:  # each was taken, or has been ended
        try:
            await reader.readline()
        except ConnectionError:
            pass
    ended = 0
    for reader, _ in strangers[: STRANGERS - rendezvous._STRANGERS_MAX]:
        try:
            ended += await reader.read() == b''
        except ConnectionError:
            ended += 1
    assert ended == STRANGERS - rendezvous._STRANGERS_MAX
    assert await is_a_worker_heard(port)
    place.close()


async def nonsense():
    place, port, faults = await opened()
    for line in b'[]', b'7', b'{"number": 1, "worker": Infinity}', b'[' * 60000, b'\xff', b'x' * 70000:
        reader, writer = await asyncio.open_connection('127.0.0.1', port)
        writer.write(line + b'\n')
        try:
            await reader.read()  # until the launcher has ended it
        except ConnectionError:
            pass
        writer.close()
    assert await is_a_worker_heard(port)
    assert not faults, faults
    place.close()


def strangers_are_bounded():
    asyncio.run(asyncio.wait_for(crowd(), 60))


def nonsense_ends_its_connection():
    asyncio.run(asyncio.wait_for(nonsense(), 60))


if __name__ == '__main__':
    sys.exit(
        run_cases(
            [
                ('strangers_are_bounded', strangers_are_bounded),
                ('nonsense_ends_its_connection', nonsense_ends_its_connection),
            ]
        )
    )
