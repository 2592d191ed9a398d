"""aiokafka: clients, queries, batches, connection health, and topics as Kafka describes them.

Imports `config`. The only room that touches private names of aiokafka.
"""
