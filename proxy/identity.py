"""Which rollout a request belongs to: by key or by path, never by a header alone (`proxy.md` 3).

A secret is 32 random bytes; only its SHA-256 is kept anywhere. It travels as the API key in any
of the places where SDKs put one, or as the path prefix `/r/<secret>`. A key that was not issued
here, beside a valid path, is no hit (harnesses with a key of their own); two valid secrets of
different rollouts are refused, never guessed between.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256

from budwood.trajectory_store import Rollout

from .errors import NotIdentified

PREFIX = "bw_"
HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")

FindRollout = Callable[[bytes], Rollout | None]


def new_secret() -> str:
    """A fresh rollout secret: `bw_` and 43 characters that are safe in a URL path."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> bytes:
    """What the store keeps of a secret: its SHA-256 (32 bytes)."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def split_path(path: str) -> tuple[str | None, str]:
    """The path secret, if any, and the path without it: `/r/<secret>/v1/x` → (secret, `/v1/x`)."""
    if not path.startswith("/r/"):
        return None, path
    secret, slash, rest = path[3:].partition("/")
    return secret or None, slash + rest if slash else "/"


def carried_keys(headers: Mapping[str, str], query: Mapping[str, str]) -> Iterator[str]:
    """Every key that the headers and the query carry, in the order of trust."""
    for name in HEADERS:
        value = headers.get(name)
        if not value:
            continue
        if name == "authorization":
            scheme, _, value = value.partition(" ")
            if scheme.lower() != "bearer":
                continue
            value = value.strip()
        if value:
            yield value
    if query.get("key"):
        yield query["key"]


def identify(
    path_secret: str | None,
    headers: Mapping[str, str],
    query: Mapping[str, str],
    find: FindRollout,
) -> Rollout | None:
    """The rollout of a request, or None where no carried secret was issued here.

    Raises NotIdentified (401) when the path and a key, or two keys, disagree.
    """
    found = find(hash_secret(path_secret)) if path_secret is not None else None
    for key in carried_keys(headers, query):
        rollout = find(hash_secret(key))
        if rollout is None:
            continue
        if path_secret is not None and found is None:
            raise NotIdentified(401, "The path names no rollout, the key names one.")
        if found is not None and found.id != rollout.id:
            raise NotIdentified(401, "The request carries the secrets of different rollouts.")
        found = rollout
    return found


def open_name(secret: str) -> str:
    """Name of a rollout that an unknown key opened: the first 8 hex digits of the key's hash."""
    return hash_secret(secret).hex()[:8]
