"""Raw lines of one kind in, fields and columns out. Pure: no Kafka, HTTP, clock, metric, thread or log."""
