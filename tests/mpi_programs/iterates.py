"""PageRank without a master while two of eight are killed, then with a newcomer. mpiexec -n 9."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

import kofn

pagerank = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "pagerank.py"))
N, ROUNDS = 10_000, 100
A, follow = pagerank["links"](N), pagerank["follow"]
start = np.full(N, 1.0 / N)

with kofn.connect("mpi", wait=60.0) as cluster:
    X = cluster.encode(A, k=4)
    kills = [(9, 6), (5, 0)]  # worker 0 leads; who leads after it may not tell of every round

    def on_round(round: int, change: float) -> None:
        if kills and round >= kills[-1][0]:
            cluster.lose(kills.pop()[1])  # kill -9

    ranks = X.iterate(follow, start, rounds=ROUNDS, on_round=on_round)
    report = X.report
    assert sorted(cluster.workers) == [1, 2, 3, 4, 5, 7]
    # What passes the master does not depend on the length of the vector.
    per_round = {N: report.extra["bytes_per_round"]}
    short = cluster.encode(pagerank["links"](500), k=4)
    short.iterate(follow, np.full(500, 1.0 / 500), rounds=ROUNDS)
    per_round[500] = short.report.extra["bytes_per_round"]
    expected = start
    for _ in range(ROUNDS):
        expected = follow(A @ expected)
    assert float(np.abs(ranks - expected).max()) <= 1e-10
    assert set(report.lost) == {0, 6}
    assert report.extra["epochs"] >= 3
    assert not report.restarted
    assert all(20 < size < 1000 for size in per_round.values()), per_round  # a vector is 80,000
    print("ranks right")

    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((60, 60)))[0]
    X = cluster.encode(turn, k=6)

    victims = [1]

    def lose_one(round: int, change: float) -> None:
        if round >= 5 and victims:
            cluster.lose(victims.pop())
            cluster.engine.join()  # without it there is no going on

    w = X.iterate(lambda y: y, np.ones(60), rounds=50, on_round=lose_one)
    assert X.report.lost == (1,)
    assert X.report.joined == (8,)
    assert X.report.rows_read[8] > 0
    np.testing.assert_allclose(w, np.linalg.matrix_power(turn, 50) @ np.ones(60), atol=1e-11)
    print("newcomer took part")
