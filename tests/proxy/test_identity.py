"""Which rollout a request belongs to."""

import pytest

from budwood.proxy.errors import NotIdentified
from budwood.proxy.identity import hash_secret, identify, new_secret, open_name, split_path


class _Rollout:
    def __init__(self, name: str) -> None:
        self.id = name


ONE, TWO = _Rollout("ro_one"), _Rollout("ro_two")
ROLLOUTS = {hash_secret("secret-one"): ONE, hash_secret("secret-two"): TWO}


def find(path: str | None, headers: dict | None = None, query: dict | None = None):
    return identify(path, headers or {}, query or {}, ROLLOUTS.get)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer secret-one"},
        {"authorization": "bearer  secret-one"},
        {"x-api-key": "secret-one"},
        {"api-key": "secret-one"},
        {"x-goog-api-key": "secret-one"},
    ],
)
def test_a_key_is_found_wherever_sdks_put_it(headers: dict) -> None:
    assert find(None, headers) is ONE


def test_a_key_in_the_query_is_found() -> None:
    assert find(None, {}, {"key": "secret-two"}) is TWO


def test_the_path_alone_identifies() -> None:
    assert find("secret-one") is ONE


def test_a_foreign_key_beside_a_valid_path_is_no_hit() -> None:
    assert find("secret-one", {"authorization": "Bearer sk-somebody-else"}) is ONE


def test_path_and_key_of_different_rollouts_are_refused() -> None:
    with pytest.raises(NotIdentified) as caught:
        find("secret-one", {"authorization": "Bearer secret-two"})
    assert caught.value.status == 401


def test_an_unknown_path_beside_a_valid_key_is_refused() -> None:
    with pytest.raises(NotIdentified):
        find("nothing", {"authorization": "Bearer secret-two"})


def test_two_keys_of_different_rollouts_are_refused() -> None:
    with pytest.raises(NotIdentified):
        find(None, {"authorization": "Bearer secret-one", "x-api-key": "secret-two"})


def test_nothing_known_is_no_rollout() -> None:
    assert find(None, {"authorization": "Bearer x"}) is None
    assert find(None, {"authorization": "Basic secret-one"}) is None


@pytest.mark.parametrize(
    ("path", "secret", "rest"),
    [
        ("/r/abc/v1/chat/completions", "abc", "/v1/chat/completions"),
        ("/r/abc", "abc", "/"),
        ("/r/abc/", "abc", "/"),
        ("/v1/models", None, "/v1/models"),
        ("/r//v1/models", None, "/v1/models"),
    ],
)
def test_the_path_secret_is_split_off(path: str, secret: str | None, rest: str) -> None:
    assert split_path(path) == (secret, rest)


def test_secrets_are_long_random_and_safe_in_a_path() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(len(secret) >= 46 and "/" not in secret for secret in secrets)


def test_an_opened_rollout_is_named_after_its_keys_hash() -> None:
    assert open_name("sk-test") == hash_secret("sk-test").hex()[:8]
