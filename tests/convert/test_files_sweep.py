"""10,000 mutated files over all formats: each is what the format's own reader reads, or our error; nothing runs."""

import pytest
from safetensors.numpy import save

from .test_files_fuzz import INDEX, SMALL, SOURCES, check_index, check_safetensors, check_torch, mutate, rewrite_pickle

ZIPPED = [content for content in SOURCES if content[:2] == b"PK"]
LEGACY = [content for content in SOURCES if content[:2] != b"PK"]
FIRST = 2**33
"""Of the seeds: above those that the suite draws."""


def change_archive(seed):
    content = ZIPPED[seed % len(ZIPPED)]
    return rewrite_pickle(content, seed) if seed % 2 else mutate(content, seed)


FORMATS = {
    "safetensors": ("m.safetensors", lambda seed: mutate(save(SMALL), seed), check_safetensors),
    "index": ("sharded", lambda seed: mutate(INDEX.encode(), seed), check_index),
    "zip": ("m.pt", change_archive, check_torch),
    "legacy": ("m.pt", lambda seed: mutate(LEGACY[seed % len(LEGACY)], seed), check_torch),
}


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files(tmp_path, monkeypatch, name, part):
    """Four formats, five parts of 500: 10,000."""
    monkeypatch.chdir(tmp_path)
    target, change, check = FORMATS[name]
    for seed in range(FIRST + 500 * part, FIRST + 500 * (part + 1)):
        try:
            check(tmp_path / target, change(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
