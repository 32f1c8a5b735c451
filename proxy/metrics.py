"""Prometheus counters of the proxy; no ids as labels."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """All metrics of one proxy, in a registry of its own."""

    def __init__(self) -> None:
        """A fresh registry."""
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "budwood_calls", "Calls that ended, by state and failure class.",
            ["state", "failure_class"], registry=self.registry,
        )  # fmt: skip
        self.prompts = Counter(
            "budwood_prompts", "Complete calls by how their prompt was made.",
            ["mode"], registry=self.registry,
        )  # fmt: skip
        self.reasons = Counter(
            "budwood_reasons", "Why calls were not spliced or not exact.",
            ["reason"], registry=self.registry,
        )  # fmt: skip
        self.tokens = Counter(
            "budwood_tokens", "Token ids of complete calls.", ["side"], registry=self.registry
        )
        self.refused = Counter(
            "budwood_refused_requests", "Requests refused before the engine saw them.",
            ["status"], registry=self.registry,
        )  # fmt: skip
        self.suffixes = Gauge(
            "budwood_suffixes", "What finding suffixes has come to: spliced, refused, audited.",
            ["event"], registry=self.registry,
        )  # fmt: skip
        self.in_flight = Gauge(
            "budwood_calls_in_flight", "Calls being generated.", registry=self.registry
        )
        self.rollouts = Gauge(
            "budwood_live_rollouts", "Rollouts held in memory.", registry=self.registry
        )
        self.first_token = Histogram(
            "budwood_first_token_seconds", "Request read to first delta.", registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )  # fmt: skip
        self.commit = Histogram(
            "budwood_commit_seconds", "Wait for a call's durable commit.", registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 10),
        )  # fmt: skip

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)
