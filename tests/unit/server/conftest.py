"""What most tests of the server's answers need."""

from __future__ import annotations

import pytest
from support.small_tokenizer import write_small_tokenizer

from nextn.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token is one byte, so that most characters that are not ASCII are spread over tokens."""
    return Tokenizer.from_folder(write_small_tokenizer(tmp_path_factory.mktemp("tokenizer")))
