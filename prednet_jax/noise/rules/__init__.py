"""Rules for the noise at each primitive; `registry` holds the table of rules."""
