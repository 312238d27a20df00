"""A home for the children of ``test_child.py``."""

import os

from tilewright.child import bound, serve


def answer(question, tell):
    word, _, rest = question.partition(b" ")
    if word == b"die":
        os.kill(os.getpid(), int(rest))
    if word == b"sleep":
        while True:
            pass
    if word == b"take":
        return str(len(bytes(int(rest)))).encode()
    for number in range(int(rest or 0)):
        tell(b"%d" % number)
    print("what a library says")
    return b"%d" % os.getpid()


def main():
    bound(1 << 30)

    def guarded(question, tell):
        try:
            return answer(question, tell)
        except MemoryError:
            return b"too much"

    serve(guarded)
