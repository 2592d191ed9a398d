"""What runs beside the worker, in processes of its own.

Started by path and without imports of ours: the peer lives in another environment.
"""
