"""Clients that edit their history, on real vLLM; `python -m tests.e2e.drift` holds more of it."""

import pytest

from .audit import MENDED
from .drift import drift

N_CONVERSATIONS = 16

pytestmark = [
    # Other people's: torch and transformers warn about machines without a GPU.
    pytest.mark.filterwarnings("ignore:::torch"),
    pytest.mark.filterwarnings("ignore:::transformers"),
]


async def test_spelling_is_spliced_meaning_is_not_and_every_token_is_trained_once(
    vllm_engine, tmp_path
):
    found = await drift(
        vllm_engine.url, vllm_engine.folder, tmp_path, n=N_CONVERSATIONS, temperature=1.3, seed=3
    )
    print(found.report())
    assert found.faults == []
    spliced, n = found.share(meaning=False)
    assert spliced == n > 50
    spliced, n = found.share(meaning=True)
    assert spliced == 0 < n
    assert found.counts[MENDED] > 0
