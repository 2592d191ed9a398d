"""The expiry rules of a Google bucket: those that affect payloads, and the project's own for each topic.

Google's rules have no names. Wideload's is the one that deletes by age and has the topic's prefix as its only other
condition. A change names the metageneration that was read, so no concurrent change is lost.

Source: Cloud Storage, "Object Lifecycle Management" and the JSON interface's "Buckets: patch".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stores.store import ExpiryRule
from transforms.errors import PayloadStoreError

Send = Callable[..., Mapping[str, Any]]

# Payloads have no custom time, and a rule for noncurrent objects does not affect them.
_NEVER_MET = {
    "customTimeBefore",
    "daysSinceCustomTime",
    "daysSinceNoncurrentTime",
    "noncurrentTimeBefore",
    "numNewerVersions",
}
_NARROWING: Mapping[str, str] = {
    "matchesStorageClass": "storage class",
    "matchesSuffix": "names that end with",
    "createdBefore": "created before",
}
_KNOWN = {"age", "isLive", "matchesPrefix", *_NARROWING, *_NEVER_MET}


def own_rule(prefix: str, days: int) -> Mapping[str, Any]:
    """The project's rule for the names that begin with `prefix`."""
    return {"action": {"type": "Delete"}, "condition": {"age": days, "matchesPrefix": [prefix]}}


def reaching(prefix: str, rules: Sequence[Mapping[str, Any]]) -> Sequence[ExpiryRule]:
    """The rules that may delete live objects below `prefix`. A rule with several conditions needs all of them."""
    found = []
    for number, rule in enumerate(rules, 1):
        condition: Mapping[str, Any] = rule.get("condition", {})
        if rule.get("action", {}).get("type") != "Delete":
            continue
        if condition.get("isLive") is False or _NEVER_MET & condition.keys():
            continue
        starts: Sequence[str] = condition.get("matchesPrefix") or [""]
        below = any(prefix.startswith(start) for start in starts)
        if not below and not any(start.startswith(prefix) for start in starts):
            continue
        narrowing = [f"{words} {_listed(condition[name])}" for name, words in _NARROWING.items() if name in condition]
        # A condition that is not known here may be for some objects only.
        unknown = sorted(condition.keys() - _KNOWN)
        days = condition.get("age")
        date = condition.get("createdBefore") if days is None else None
        found.append(
            ExpiryRule(
                id=f"rule {number} of the bucket",
                # Without an age it deletes immediately.
                days=days if days is not None else None if date else 0,
                date=date,
                whole=below and not narrowing and not unknown,
                tagged=False,
                own=_is_own(rule, prefix),
                scope=", ".join(
                    [
                        *(f"names that begin with {start}" if start else "all names" for start in starts),
                        *narrowing,
                        *unknown,
                    ]
                ),
            )
        )
    return found


class GcsLifecycle:
    """The rules of one bucket. May be used by several threads.

    Args:
        send: sends a request for the bucket: operation, method, query and body; returns its description.
    """

    def __init__(self, send: Send) -> None:
        self._send = send

    def rules(self, prefix: str) -> Sequence[ExpiryRule]:
        """The rules that may delete objects below `prefix`.

        Raises:
            PayloadStoreError: they cannot be read; the message says what is missing.
        """
        return reaching(prefix, _rules(self._read()))

    def set(self, prefix: str, days: int | None) -> bool:
        """Sets the project's own rule for `prefix`, or removes it; True if anything changed.

        Raises:
            PayloadStoreError: it could not be done, or somebody else changed the bucket at the same time.
        """
        bucket = self._read()
        rules = _rules(bucket)
        others = [rule for rule in rules if not _is_own(rule, prefix)]
        wanted = others if days is None else [*others, own_rule(prefix, days)]
        if len(wanted) == len(rules) and all(rule in rules for rule in wanted):
            return False
        metageneration = bucket.get("metageneration")
        if not isinstance(metageneration, str):
            raise PayloadStoreError("GCS set-rules failed: the server returns no metageneration; nothing was changed")
        body = {"lifecycle": {"rule": wanted} if wanted else None}
        after = self._send("set-rules", "PATCH", {"ifMetagenerationMatch": metageneration}, body)
        if _rules(after) != wanted:
            raise PayloadStoreError(
                "GCS set-rules failed: the rules differ from those that were written; check them, and try again",
                retriable=True,
            )
        return True

    def _read(self) -> Mapping[str, Any]:
        return self._send("get-rules", "GET", {"fields": "lifecycle,metageneration"})


def _rules(bucket: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    lifecycle = bucket.get("lifecycle") or {}
    rules = lifecycle.get("rule", []) if isinstance(lifecycle, dict) else None
    if not isinstance(rules, list) or not all(_is_rule(rule) for rule in rules):
        raise PayloadStoreError("GCS get-rules failed: the rules do not have the form of GCS's")
    return rules


def _is_rule(rule: Any) -> bool:
    if not isinstance(rule, dict) or not isinstance(rule.get("action", {}), dict):
        return False
    condition = rule.get("condition", {})
    return (
        isinstance(condition, dict)
        and type(condition.get("age", 0)) is int
        and isinstance(condition.get("createdBefore", ""), str)
        and isinstance(condition.get("matchesPrefix", []), list)
        and all(isinstance(start, str) for start in condition.get("matchesPrefix", []))
    )


def _is_own(rule: Mapping[str, Any], prefix: str) -> bool:
    condition = rule.get("condition", {})
    return (
        rule.get("action") == {"type": "Delete"}
        and condition.keys() == {"age", "matchesPrefix"}
        and condition["matchesPrefix"] == [prefix]
    )


def _listed(value: object) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)
