"""The pure steps between source and sinks: no Kafka, HTTP, clock, metric, thread or log."""
