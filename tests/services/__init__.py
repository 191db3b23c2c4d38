"""The real servers that the tests talk to: Kafka, an S3 store, VictoriaLogs, Loki, and the strict Loki receiver.

Each comes from the first of: an address in the environment, Docker, a native start of what `install.py` has
built, or else the nearest substitute from PyPI. `table` decides, and prints at the end of the run what was used.
"""
