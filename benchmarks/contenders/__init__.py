"""The programs that the worker is compared with, in separate processes.

Started by path and without imports of ours: the peer lives in another environment.
"""
