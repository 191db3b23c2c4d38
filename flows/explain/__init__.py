"""`tailrace parse --explain`: why a line became what it became, and what each store would get."""
