"""What a verifier's output and its script say about whether it could do its work.

A verifier that misses a tool, or the network, often still writes 0. These are the traces that it
leaves: a test report that is not there, a line of the shell or of a downloader before any test ran.
"""

from __future__ import annotations

import json
import re

_CTRF = re.compile(r"--ctrf(?:[=\s]|\\\n)+(['\"]?)([^\s'\"]+)\1")
_COMMENT = re.compile(r"^\s*#.*$|\s#.*$", re.MULTILINE)

_TEST_RAN = re.compile(
    r"""^=+\ test\ session\ starts\ =+$   # pytest
    |^collected\ [1-9]\d*\ items?
    |^Ran\ [1-9]\d*\ tests?\ in\           # unittest
    |^(?:not\ )?ok\ \d+                   # TAP, bats, node --test
    |^=+\ RUN\ |^---\ (?:PASS|FAIL):      # go
    |^running\ [1-9]\d*\ tests?$          # cargo
    |^Tests?:?\s+(?:run:\s)?[1-9]\d*      # jest, vitest, maven
    |^(?:PASS|FAIL)(?:ED)?\b""",
    re.MULTILINE | re.VERBOSE,
)

# Only what verifiers are made of: a program that the task itself asks for may be missing honestly,
# and so may one that the agent's own scripts call.
_TOOLS = (
    r"""(?:uvx?|pytest|pip3?|python3?|curl|wget|apt(?:-get)?|git|jq|node|npm|npx|go|cargo|make)"""
)
_TOOL_MISSING = re.compile(
    rf"^/tests/\S+: (?:line )?\d+: {_TOOLS}: (?:command )?not found\r?$"
    r"|^\S*python[\d.]*: No module named (?:pytest|pip|uv)\b",
    re.MULTILINE,
)
_NO_NETWORK = re.compile(
    r"""curl:\ \(6\)\ Could\ not\ resolve\ (?:host|proxy)
    |curl:\ \(7\)\ Failed\ to\ connect\ to\ (?!localhost|127\.|\[?::1)
    |wget:\ unable\ to\ resolve\ host\ address
    |Temporary\ failure\ (?:in\ name\ resolution|resolving)
    |Failed\ to\ establish\ a\ new\ connection:\ \[Errno\ -[235]\]
    |Network\ is\ unreachable
    |dns\ error:\ failed\ to\ lookup\ address
    |getaddrinfo\ (?:ENOTFOUND|EAI_AGAIN)""",
    re.VERBOSE,
)


def report_path(script: str) -> str | None:
    """Return where a verifier's script has its CTRF report written, None if it asks for none.

    A path with a variable in it is told as it stands.
    """
    found = _CTRF.search(_COMMENT.sub("", script))
    return found[2] if found else None


def n_tests(report: bytes | None) -> int | None:
    """Return how many tests a CTRF report says there were; None without a report that tells."""
    if report is None:
        return None
    try:
        results = json.loads(report)["results"]
        listed = len(results.get("tests") or ())
        return max(listed, int(results.get("summary", {}).get("tests", listed)))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def tool_missing(output: str) -> str | None:
    """Return the line in which the verifier's own script missed a program, before any test."""
    return _first_line(_TOOL_MISSING, _before_tests(output))


def network_missing(output: str) -> str | None:
    """Return the line in which something did not reach the network, before any test."""
    return _first_line(_NO_NETWORK, _before_tests(output))


def _before_tests(output: str) -> str:
    first = _TEST_RAN.search(output)
    return output[: first.start()] if first else output


def _first_line(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the line of the first match, shortened."""
    found = pattern.search(text)
    if not found:
        return None
    start = text.rfind("\n", 0, found.start()) + 1
    return text[max(start, found.start() - 100) : found.end() + 100].splitlines()[0].strip()
