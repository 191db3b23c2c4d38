"""The demo: its logs, the Loki receiver that checks what it gets, and the screen."""
