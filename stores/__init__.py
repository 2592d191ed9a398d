"""Payload stores, which keep large values. The only folder that knows boto3 and obstore.

Imports `transforms`.
"""
