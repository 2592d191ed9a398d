"""Payload stores, which keep large values. The only package that imports boto3 and obstore.

Imports `transforms`.
"""
