"""Where messages come from: Kafka without end, files to their end."""
