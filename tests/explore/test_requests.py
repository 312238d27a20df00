"""The explorer's server under attack: silent connections, many questions at once, clients that leave."""

import asyncio
import signal
import subprocess
import sys

import pytest

from tests.nightly import requests

SERVED = """
from tilewright.explore import Explorer, serve, server
for name, bound in {bounds}.items():
    setattr(server, name, bound)
serve(Explorer(), opened=lambda address: print(address, flush=True))
"""


@pytest.fixture
def held():
    """Serve from a process of its own, run one attack, end it as by Ctrl-C: whether it held, and what it said."""

    def attacked(attack, **bounds):
        command = [sys.executable, "-P", "-c", SERVED.format(bounds=bounds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                found = asyncio.run(attack(requests.Server(process.stdout.readline().strip())))
            finally:
                process.send_signal(signal.SIGINT)
            said = process.stderr.read()
        assert process.returncode == 130
        return *found, said

    return attacked


def test_silent_connections_are_dropped_and_keep_nobody_out(held):
    counts, well, said = held(lambda to: requests.silent(to, 70), _SECONDS_SILENT=2.0)
    assert (counts["dropped"], well, said) == (70, True, "")


def test_more_silent_ones_than_have_room_lose_the_oldest(held):
    async def crowd(to):
        clients = [await to.connect() for _ in range(20)]
        served = await to.serves()
        oldest = [await asyncio.wait_for(reader.read(), requests.PATIENCE) for reader, _ in clients[:12]]
        for _, writer in clients:
            writer.transport.abort()
        return oldest, served

    oldest, served, said = held(crowd, _SECONDS_SILENT=3600.0, _MOST_SILENT=8)
    assert (oldest, served, said) == ([b""] * 12, True, "")


def test_questions_at_once_wait_for_their_turn(held):
    counts, well, said = held(lambda to: requests.at_once(to, 100))
    assert (counts["answered"], well, said) == (100, True, "")


def test_who_falls_silent_in_a_body_is_let_go(held):
    async def stalls(to):
        reader, writer = await to.connect()
        writer.write(to.head("POST", "/drop", 100) + b"a part")
        said = await asyncio.wait_for(reader.read(), requests.PATIENCE)
        writer.transport.abort()
        return said[:12], await to.serves()

    said_to_it, served, said = held(stalls, _SECONDS_SILENT=1.0)
    assert (said_to_it, served, said) == (b"HTTP/1.1 400", True, "")


def test_who_leaves_costs_no_line(held):
    _, well, said = held(lambda to: requests.leavers(to, 40, requests.random.Random(7)))
    assert (well, said) == (True, "")
