"""Attacks on the explorer's server and on the door for agents, over the loopback only; exits with 1 where one succeeds.

    ./run python -m tests.nightly.requests [--trials 200] [--seed 0]

Silent connections, questions all at once, clients that leave, malformed requests, and names of files outside of what is
served. After each attack the owner must be answered at once. Prints one line of counts for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PATIENCE = 120.0  # a bound for whatever is awaited, so that a server that hangs ends the script
TILED = "f32[3,5]{1,0:T(2,2)}"


class Server:
    """An explorer's address, as clients of all kinds see it."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.port, self.token = parts.port, parse_qs(parts.query)["token"][0]

    def head(self, method: str, path: str, length: int = 0, token: str | None = None, more: str = "") -> bytes:
        token = self.token if token is None else token
        lines = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\nauthorization: Bearer {token}\r\n"
        return (lines + f"content-length: {length}\r\n{more}\r\n").encode("latin-1")

    async def connect(self):
        return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self.port), PATIENCE)

    async def send(self, raw: bytes) -> tuple[int, bytes]:
        """Status and body of an answer; (0, b"") where the connection was closed without one."""
        reader, writer = await self.connect()
        try:
            writer.write(raw)
            return await asyncio.wait_for(_answer(reader), PATIENCE)
        except (OSError, asyncio.IncompleteReadError):
            return 0, b""
        finally:
            writer.transport.abort()

    async def ask(self, question: str, values: object, path: str = "/api/") -> tuple[int, bytes]:
        body = json.dumps(values).encode()
        return await self.send(self.head("POST", path + question, len(body)) + body)

    async def serves(self) -> bool:
        """Whether the owner gets the page and the right answer."""
        page, _ = await self.send(self.head("GET", "/"))
        status, body = await self.ask("layout", {"text": TILED})
        return (page, status) == (200, 200) and json.loads(body)["value"]["layout"] == TILED


async def _answer(reader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b"0")
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length))


async def silent(server: Server, trials: int) -> tuple[Counter, bool]:
    """Connections without a whole head: none keeps the owner out, and all are dropped, those that drip bytes too."""
    starts = (b"", b"G", b"GET / HTTP/1.1\r\nhost: x\r\n", b"POST /drop HTTP/1.1\r\ncontent-length: 9")
    clients = [await server.connect() for _ in range(trials)]
    for number, (_, writer) in enumerate(clients):
        writer.write(starts[number % len(starts)])
    counts = Counter(tried=trials)
    counts["owner answered meanwhile"] = int(await server.serves())

    async def dropped(number, reader, writer):
        """Whether the server closed it; what it was sent before (a refusal of the head) is read past."""

        async def drip():
            while number % 8 == 3:  # a byte now and then would keep a clock that each byte sets back from running out
                await asyncio.sleep(0.5)
                writer.write(b"9")

        dripping = asyncio.create_task(drip())
        try:
            await asyncio.wait_for(reader.read(), PATIENCE)
        except TimeoutError:
            return False
        except OSError:  # a reset is an end, too
            pass
        finally:
            dripping.cancel()
            writer.transport.abort()
        return True

    ended = [dropped(number, *client) for number, client in enumerate(clients)]
    counts["dropped"] = sum(await asyncio.gather(*ended))
    return counts, bool(counts["owner answered meanwhile"]) and counts["dropped"] == trials and await server.serves()


async def at_once(server: Server, trials: int) -> tuple[Counter, bool]:
    """So many questions at one time, each on a connection of its own: every one has its own right answer."""
    texts = [f"f32[{number + 1},5]{{1,0:T(2,2)}}" for number in range(trials)]
    found = await asyncio.gather(*(server.ask("layout", {"text": text}) for text in texts))
    right = [
        status == 200 and json.loads(body)["value"]["layout"] == text for text, (status, body) in zip(texts, found)
    ]
    return Counter(tried=trials, answered=sum(right)), all(right)


async def leavers(server: Server, trials: int, draw: random.Random) -> tuple[Counter, bool]:
    """Clients that go in the middle of a head or a body, or before the answer, politely or not."""
    body = json.dumps({"text": TILED}).encode()
    whole = server.head("POST", "/api/layout", len(body)) + body
    large = server.head("POST", "/drop", 1 << 20) + bytes(5000)
    for number in range(trials):
        _, writer = await server.connect()
        writer.write(whole if number % 3 == 0 else large if number % 3 == 1 else whole[: draw.randrange(len(whole))])
        if number % 2:
            await writer.drain()
            writer.close()
        else:
            await asyncio.sleep(0)
            writer.transport.abort()
    return Counter(tried=trials), await server.serves()


async def malformed(server: Server, trials: int, draw: random.Random) -> tuple[Counter, bool]:
    """Damaged requests without the token: 403, 400 or a closed connection, never an answer or a fault of the server."""
    counts = Counter(tried=trials)
    good = server.head("POST", "/api/layout?token=wrong", 2, token="wrong") + b"{}"
    for _ in range(trials):
        raw = bytearray(good)
        for _ in range(draw.randrange(1, 8)):
            at = draw.randrange(len(raw))
            raw[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
        raw = bytes(raw) + b"\r\n\r\n"
        status, _ = await server.send(raw if draw.randrange(8) else draw.randbytes(200) + b"\r\n\r\n")
        counts["closed" if status == 0 else str(status)] += 1
    return counts, set(counts) <= {"tried", "closed", "400", "403"} and await server.serves()


#: A file outside of what is served, and one beside it that is not there.
OUTSIDE = (
    ("{place}/there.toml", "{place}/none.toml"),
    ("../outside/there.toml", "../outside/none.toml"),
    ("../outside/../root/dump.hlo", "../nowhere/../root/dump.hlo"),
    ("../outside/link/../root/dump.hlo", "../outside/none/../root/dump.hlo"),
    ("../outside/loop", "../outside/none"),
    ("/etc/passwd", "/etc/nobody"),
    ("{place}", "{place}x"),
    ("{place}/there.toml/x", "{place}/none.toml/x"),
    ("{place}/closed/x.toml", "{place}/none/x.toml"),
)


def make_files(folder: Path) -> tuple[Path, list[tuple[str, str]]]:
    """A folder that is served, one outside, and pairs of names that lead to the other."""
    root, place = folder / "root", folder / "outside"
    root.mkdir()
    place.mkdir()
    (root / "dump.hlo").write_text("HloModule m\nENTRY e { ROOT p = f32[4] parameter(0) }")
    (place / "there.toml").write_text("name = 'x'\n")
    (place / "link").symlink_to("/usr")
    (place / "loop").symlink_to(place / "loop")
    (place / "closed").mkdir(mode=0)
    return root, [(a.format(place=place), b.format(place=place)) for a, b in OUTSIDE]


def unnamed(answer: object, name: str) -> str:
    """An answer without the name that was asked for."""
    text = json.dumps(answer) if not isinstance(answer, str) else answer
    for form in (name, json.dumps(name)[1:-1], repr(name), name.rpartition("/")[2]):
        text = text.replace(form, "NAME")
    return text


async def outside(server: Server, pairs: list[tuple[str, str]]) -> tuple[Counter, bool]:
    """The same answer for a file outside that is there and one that is not, wherever a name can be given."""
    counts, same = Counter(), True

    async def planned(name):
        raw = f'target = "{name}"\nbatch = 64\n[[table]]\nname = "t"\nvocab = 50\nwidth = 8\n'.encode()
        _, body = await server.send(server.head("POST", "/drop", len(raw), more="x-name: m.toml\r\n") + raw)
        return await server.ask("plan", {"file": json.loads(body)["value"]["id"]})

    ways = {
        "file": lambda name: server.ask("program", {"file": name}),
        "target": lambda name: server.ask("plan", {"target": name}),
        "chip": lambda name: server.ask("program", {"file": "file", "target": name}),
        "source": lambda name: server.ask("source", {"name": name}),
        "report": lambda name: server.send(server.head("GET", f"/report/{name}")),
        "asset": lambda name: server.send(server.head("GET", f"/assets/{server.token}/{name}")),
        "model": planned,
    }
    for way, asked in ways.items():
        for there, absent in pairs:
            answers = [
                (status, unnamed(body.decode(), name))
                for name in (there, absent)
                for status, body in [await asked(name)]
            ]
            counts["pairs"] += 1
            if answers[0] != answers[1]:
                same = False
                print(f"  {way} {there}: {answers[0]}\n  {way} {absent}: {answers[1]}")
    return counts, same and await server.serves()


def agents_outside(root: Path, pairs: list[tuple[str, str]]) -> tuple[Counter, bool]:
    """As `outside`, of the tools for agents."""
    ways = [("report", "file", {}), ("time", "file", {"target": "tpu-v6e"}), ("report", "target", {"file": "dump.hlo"})]
    ways += [
        ("plan_embeddings", "config", {}),
        ("plan_embeddings", "log", {}),
        ("plan_embeddings", "config_target", {}),
    ]
    opening = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "attack", "version": "0"}}
    command = [sys.executable, "-m", "tilewright", "mcp", "--root", str(root)]
    counts, same = Counter(), True
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def call(method, params):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        call("initialize", opening)
        process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        for tool, field, more in ways:
            for pair in pairs:
                answers = []
                for name in pair:
                    arguments = {**more, field: name}
                    if field == "config_target":
                        (root / "model.toml").write_text(
                            f'target = "{name}"\n[[table]]\nname = "t"\nvocab = 9\nwidth = 8\n'
                        )
                        arguments = {"config": "model.toml"}
                    answers.append(unnamed(call("tools/call", {"name": tool, "arguments": arguments}), name))
                counts["pairs"] += 1
                if answers[0] != answers[1]:
                    same = False
                    print(f"  {tool} {field} {pair[0]}: {answers[0]}\n  {tool} {field} {pair[1]}: {answers[1]}")
        process.stdin.close()
    return counts, same and process.returncode == 0


async def attack(server: Server, trials: int, seed: int, pairs: list[tuple[str, str]]) -> bool:
    """All attacks on the server, one after the other; whether it held."""
    draw, held = random.Random(seed), True
    for name, work in (
        ("silent connections", silent(server, 70)),
        ("silent connections, many", silent(server, 2 * trials)),
        ("questions at once", at_once(server, trials)),
        ("leavers", leavers(server, trials, draw)),
        ("malformed requests", malformed(server, trials, draw)),
        ("files outside, the explorer", outside(server, pairs)),
    ):
        held &= said(name, *await work)
    return held


def said(name: str, counts: Counter, well: bool) -> bool:
    print(f"{name}: {', '.join(f'{what} {n}' for what, n in counts.items())}: {'held' if well else 'FELL'}", flush=True)
    return well


def main() -> int:
    """Start an explorer, attack it, and read what it wrote."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--trials", type=int, default=200)
    asked.add_argument("--seed", type=int, default=0)
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root, pairs = make_files(Path(place).resolve())
        noise = Path(place) / "stderr"
        command = [sys.executable, "-m", "tilewright", "explore", str(root / "dump.hlo"), "--no-browser"]
        with (
            noise.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                server = Server(process.stdout.readline().strip())
                held = asyncio.run(attack(server, options.trials, options.seed, pairs))
            finally:
                process.terminate()
        lines = noise.read_text().splitlines()
        faults = sum("Traceback" in line for line in lines)
        held &= said(
            "what it wrote", Counter(lines=len(lines), tracebacks=faults), not faults and len(lines) <= options.trials
        )
        held &= said("how it ended", Counter(code=process.returncode), process.returncode == 143)
        held &= said("files outside, agents", *agents_outside(root, pairs))
        os.chmod(root.parent / "outside" / "closed", 0o700)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
