"""Secrets leave lines before anything else reads them.

`rules` are data (secrets.toml, `config`); `names` and `values` tell what is secret and where it ends; `line` takes it
out of one line, `blocks` out of several, `carriers` out of what CRI, Docker and the journal make of lines; `columns` is
the step.
"""
