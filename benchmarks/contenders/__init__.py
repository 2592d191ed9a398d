"""What runs in processes of its own, beside the worker. Started by path: the peer's environment has none of our code."""
