"""Which code is the fastest on a spot market? Prints a table, and draws it.

python examples/simulate.py                           a market made up from lifetimes
python examples/simulate.py --market FILE --out p.png       a recorded one (docs/simulate.md)
"""

from __future__ import annotations

import argparse

import kofn
from kofn.delays import Lifetimes

LIVES = tuple(3600.0 * hours for hours in (0.2, 0.5, 0.7, 1.0, 1.5, 2.5, 4.0, 8.0, 12.0, 24.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--market", help="a file of who came and went")
    parser.add_argument("--out", help="draw it here: .png, .svg or .pdf")
    args = parser.parse_args()
    market = args.market or Lifetimes(LIVES, (True,) * 9 + (False,))
    table = kofn.simulate(
        kofn.Work("gradient", rows=100_000_000, columns=50, parts=40),
        "uncoded, cyclic(c=2), cyclic(c=3)",
        workers=20,
        # Kernel regression with 10,000 centers: 10**12 kernel values a gradient. One core
        # computes one in 4.8 ns (measured), so a machine of 16 cores needs 300 s. That
        # waits take 3 s on average is an assumption.
        timings="exponential(unit=300, mean=3)",
        market=market,
        rounds=1_000,
        seconds=6 * 3600,
        costs=kofn.Costs(start_up=60),
    )
    print("code         gradients  seconds each  work  of the data, each worker keeps")
    for name, row in table.rows.items():
        mean = row.seconds.mean() if len(row.seconds) else float("nan")
        print(
            f"{name:11}  {len(row.seconds):9}  {mean:12.1f}  {row.work:4.2f}  {row.memory or 0:.1%}"
        )
    if args.out:
        table.plot(args.out)


if __name__ == "__main__":
    main()
