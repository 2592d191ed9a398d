"""Serializers with Faust."""

from __future__ import annotations

from app.serializers.faust import LargeMessageSchema, LargeMessageTopic, OnDiscarded, OnFailure

__all__ = ["LargeMessageSchema", "LargeMessageTopic", "OnDiscarded", "OnFailure"]
