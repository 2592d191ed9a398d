"""The worker, its command line, and the clients that applications embed; one package for each room.

May import `transforms` and `stores`.
"""
