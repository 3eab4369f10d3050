"""What noise does at each primitive; `registry` holds the rules of all of them."""
