"""The sample that articles on the method begin with: 65,536 normal random keys and values, one query, 2,048 tokens.

Keys without structure are the method's worst case: a page's best eight directions hold little more than eight random
ones would. The test holds the library to the same pages as an independent computation, and the documentation to the
honest outcome.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

TOKENS, HEAD_DIM, BUDGET, PAGE, RANK = 65536, 128, 2048, 16, 8


def sample(seed):
    random = np.random.default_rng(seed)
    keys, values = (random.standard_normal((TOKENS, HEAD_DIM), dtype=np.float32) for _ in range(2))
    query = random.standard_normal(HEAD_DIM, dtype=np.float32)
    return keys.astype(np.float64), values.astype(np.float64), query.astype(np.float64)


def page_log_masses(logits):
    pages = logits.reshape(-1, PAGE)
    top = pages.max(axis=1)
    return top + np.log(np.exp(pages - top[:, None]).sum(axis=1))


def low_rank_logits(keys, query):
    """By the eigenvectors of each page's Gram matrix; the library's side takes a singular value decomposition."""
    pages = keys.reshape(-1, PAGE, HEAD_DIM)
    mean = pages.mean(axis=1, keepdims=True)
    centred = pages - mean
    _, vectors = np.linalg.eigh(centred @ centred.transpose(0, 2, 1))
    leading = vectors[:, :, -RANK:]
    projected = leading @ (leading.transpose(0, 2, 1) @ (centred @ query)[:, :, None])
    return (projected[:, :, 0] + (mean @ query)).reshape(-1) / np.sqrt(HEAD_DIM)


def attend(logits, values, pages=None):
    if pages is not None:
        tokens = (np.asarray(sorted(pages))[:, None] * PAGE + np.arange(PAGE)).reshape(-1)
        logits, values = logits[tokens], values[tokens]
    weights = np.exp(logits - logits.max())
    return weights @ values / weights.sum()


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def best_pages(masses):
    return set(np.argsort(-masses, kind="stable")[: BUDGET // PAGE].tolist())


def test_the_library_selects_the_pages_that_numpy_does(tmp_path):
    keys, _, query = sample(0)
    program = Path(os.environ["LOCKS_BUILD_DIR"]) / "tests" / "introductory_sample"
    keys.astype("<f4").tofile(tmp_path / "keys")
    query.astype("<f4").tofile(tmp_path / "query")
    command = [program, tmp_path / "keys", tmp_path / "query", str(HEAD_DIM), str(BUDGET)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert {int(line) for line in printed.split()} == best_pages(page_log_masses(low_rank_logits(keys, query)))


def test_on_keys_without_structure_the_output_is_far_from_dense():
    cosines = []
    for seed in range(8):
        keys, values, query = sample(seed)
        logits = keys @ query / np.sqrt(HEAD_DIM)
        dense = attend(logits, values)
        for masses in (page_log_masses(low_rank_logits(keys, query)), page_log_masses(logits)):
            cosines.append(cosine(attend(logits, values, best_pages(masses)), dense))
    locks, oracle = np.reshape(cosines, (8, 2)).mean(axis=0)
    print(f"cosine to dense attention, mean of 8 samples: LOCKS {locks:.3f}, oracle {oracle:.3f}")
    assert locks == pytest.approx(0.37, abs=0.03)
    assert oracle == pytest.approx(0.48, abs=0.03)
