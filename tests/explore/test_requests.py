"""The explorer's server under attack: silent connections, many questions at once, clients that leave."""

import asyncio
import os
import signal
import threading

import pytest

from tests.nightly import requests
from tilewright.explore import Explorer, serve, server


@pytest.fixture
def held(monkeypatch, capfd):
    """Serve, run one attack from another thread, end as by Ctrl-C: whether it held, and what was written meanwhile."""

    def attacked(attack, **bounds):
        for name, bound in bounds.items():
            monkeypatch.setattr(server, name, bound)
        found = []

        def run(address):
            try:
                found.append(asyncio.run(attack(requests.Server(address))))
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        def opened(address):
            threading.Thread(target=run, args=[address]).start()

        with pytest.raises(SystemExit, match="130"):
            serve(Explorer(), opened=opened)
        return *found[0], capfd.readouterr().err

    return attacked


def test_silent_connections_are_dropped_and_keep_nobody_out(held):
    counts, well, said = held(lambda to: requests.silent(to, 70), _SECONDS_SILENT=0.2)
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


def test_who_leaves_costs_no_line(held):
    _, well, said = held(lambda to: requests.leavers(to, 40, requests.random.Random(7)))
    assert (well, said) == (True, "")
