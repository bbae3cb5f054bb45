"""A program: EC2's metadata service of one host, as far as notices go.

A line of input is a number of seconds: from now on it says that the machine ends so much later. It
answers with that time.
"""

from __future__ import annotations

import sys

from metadata import EC2

PORT = 1338
BASE = f"http://127.0.0.1:{PORT}"


def main() -> None:
    with EC2(PORT) as service:
        print("ready", flush=True)
        for line in sys.stdin:
            print(service.announce(float(line)), flush=True)


if __name__ == "__main__":
    main()
