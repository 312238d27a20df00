"""The command: ``tilewright``, or ``python -m tilewright`` where its script is not on the path."""

import os
import signal


def main() -> None:
    """Run the command line. Until it is loaded nothing is begun, so a signal just ends the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os._exit(128 + number))
    from tilewright.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
