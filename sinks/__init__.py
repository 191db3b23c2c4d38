"""Columns out to one store each. Knows LOG batches and its store, nothing of Kafka, flows or parsers' grammars."""
