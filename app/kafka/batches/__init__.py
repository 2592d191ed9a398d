"""A producer whose batches are closed by their compressed size, and split if the broker refuses them (KIP-126)."""
