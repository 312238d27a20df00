"""A day of clicks as CSV, to try the planner on: label, user, item, history (item ids parted by |), city.

    ./run python examples/click_log.py monday.csv
    ./run python examples/click_log.py tuesday.csv --seed 2 --sale 0.25

Ids follow a Zipf law, as Criteo's do: few are in every second row, most are rare. ``--sale`` is the share of all clicks
that goes to one item that is on sale, which is what limits learnt on a quiet day do not foresee.
"""

import argparse
import csv

import numpy as np

USERS, ITEMS, LONGEST = 1_000_000, 50_000, 20
ON_SALE = 31_405
CITIES = [f"{name}-{n}" for name in ("Riga", "Lagos", "Quito", "Osaka", "Perth", "Turin") for n in range(500)]


def zipf(draw, n, count, exponent=1.05):
    """``count`` ids below ``n``, id k about (k + 1) ** -exponent times as often as id 0, in a shuffled numbering."""
    weights = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -exponent)
    rank = np.searchsorted(weights, draw.random(count) * weights[-1])
    return rank * 7_368_787 % n  # a prime: neighbours in popularity are no neighbours in number


def rows(count, seed, sale):
    """The rows of a day."""
    draw = np.random.default_rng(seed)
    users, cities = zipf(draw, USERS, count, 1.0), zipf(draw, len(CITIES), count)
    lengths = 1 + (LONGEST * draw.random(count) ** 2).astype(int)
    ends = np.cumsum(lengths + 1)
    items = zipf(draw, ITEMS, int(ends[-1]))
    items[draw.random(len(items)) < sale] = ON_SALE
    labels = draw.random(count) < 0.04
    for label, user, city, length, end in zip(labels, users, cities, lengths, ends):
        history = "|".join(map(str, items[end - length : end]))
        yield int(label), user, items[end - length - 1], history, CITIES[city]


def main():
    parser = argparse.ArgumentParser(description="A day of clicks as CSV.")
    parser.add_argument("file")
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sale", type=float, default=0.0, help="share of the clicks that go to one item")
    given = parser.parse_args()
    with open(given.file, "w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(("label", "user", "item", "history", "city"))
        writer.writerows(rows(given.rows, given.seed, given.sale))
    print(f"{given.file}: {given.rows:,} rows")


if __name__ == "__main__":
    main()
