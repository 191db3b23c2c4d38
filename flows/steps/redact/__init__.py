"""Secrets leave lines before anything else reads them: `rules` (data), `names` and `values` (what a name tells is
secret, and where it ends), `line` (one line), `blocks` (secrets of several lines), `columns` (the step), `config`."""
