"""Everything between sources and sinks; the only package that knows both."""
