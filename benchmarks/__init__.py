"""Throughput and memory of one tier process, measured against a real Kafka broker and the strict Loki receiver."""
