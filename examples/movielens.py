"""A recommender for films: user, item and genre tables, and a log of ratings in the shape of MovieLens 100K.

    ./run python examples/movielens.py ratings.csv       # 943 users, 1,682 items, 100,000 ratings, in random order
    ./run tilewright embed train examples/movielens.py --data ratings.csv --checkpoint run1 ...

The log is made up: MovieLens' own may not be handed on. Users and items are as unequal in number of ratings as there,
and ratings carry a planted signal: every user and item has hidden tastes, and a rating is their agreement, rounded to 1
to 5 stars. What a model can learn of it, and what is noise, is therefore known.
"""

import argparse
import csv

import jax.numpy as jnp
import numpy as np
import optax

from tilewright.embed import Adagrad, Feature, Table

USERS, ITEMS, GENRES, RATINGS = 943, 1682, 19, 100_000
TASTES, NOISE = 4, 0.6
WIDTH = 16
NUMERIC, LABEL, IDS = ["age"], "rating", "direct"


def features(scale):
    """Tables of users, items and genres; an item has one to three genres, whose rows are averaged."""
    optimizer = Adagrad(learning_rate=0.1, initial_accumulator=1e-6)  # gradients of a mean over a batch are small
    return [
        Feature("user", Table("user", USERS, WIDTH, optimizer=optimizer)),
        Feature("item", Table("item", ITEMS, WIDTH, optimizer=optimizer)),
        Feature("genres", Table("genre", GENRES, WIDTH, combiner="mean", optimizer=optimizer)),
    ]


def optimizer():
    """How the dense parameters learn."""
    return optax.adam(1e-2)


def init(key):
    """Dense parameters: biases, and how much of a rating is the user's or the item's alone."""
    return {"mean": jnp.float32(3.5), "age": jnp.zeros(1), "user": jnp.zeros(WIDTH), "item": jnp.zeros(WIDTH)}


def predict(params, numeric, vectors):
    """Stars f32[B]: a product of user and item, and what each brings along."""
    user, item = vectors["user"], vectors["item"] + vectors["genres"]
    alone = user @ params["user"] + item @ params["item"] + numeric @ params["age"]
    return params["mean"] + (user * item).sum(axis=1) + alone


def loss(params, numeric, vectors, labels):
    """(mean squared error, predicted stars f32[B])."""
    stars = predict(params, numeric, vectors)
    return jnp.mean((stars - labels) ** 2), stars


def skewed(draw, n, count, exponent):
    """``count`` numbers below ``n``, few of them often and most rarely."""
    weights = np.arange(1, n + 1) ** -exponent
    return draw.permutation(n)[draw.choice(n, count, p=weights / weights.sum())]


def ratings(seed):
    """Columns of the log."""
    draw = np.random.default_rng(seed)
    user, item = skewed(draw, USERS, RATINGS, 0.6), skewed(draw, ITEMS, RATINGS, 0.8)
    age = draw.integers(16, 70, USERS)
    genres = [draw.choice(GENRES, draw.integers(1, 4), replace=False) for _ in range(ITEMS)]
    of_genre = draw.normal(size=(GENRES, TASTES))
    of_item = 0.5 * draw.normal(size=(ITEMS, TASTES)) + np.stack([of_genre[some].mean(axis=0) for some in genres])
    of_user = draw.normal(size=(USERS, TASTES))
    agreement = (of_user[user] * of_item[item]).sum(axis=1) / np.sqrt(TASTES)
    stars = 3.5 + 0.8 * agreement + 0.3 * draw.normal(size=ITEMS)[item] + NOISE * draw.normal(size=RATINGS)
    cells = ["|".join(map(str, some)) for some in genres]
    return user, item, [cells[i] for i in item], (age / 70).round(3)[user], np.clip(np.rint(stars), 1, 5).astype(int)


def main():
    parser = argparse.ArgumentParser(description="Ratings in the shape of MovieLens 100K, as CSV.")
    parser.add_argument("file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", help="a second file, for the last tenth of the ratings")
    given = parser.parse_args()
    rows = list(zip(*ratings(given.seed), strict=True))
    kept = RATINGS * 9 // 10 if given.held_out else RATINGS
    for name, part in ((given.file, rows[:kept]), (given.held_out, rows[kept:])):
        if name is None:
            continue
        with open(name, "w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(("user", "item", "genres", "age", "rating"))
            writer.writerows(part)
        print(f"{name}: {len(part):,} ratings")


if __name__ == "__main__":
    main()
