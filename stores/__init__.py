"""Payload stores: where large values live. The only folder that knows boto3.

Imports `transforms.errors` at most.
"""
