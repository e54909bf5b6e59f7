"""The socket of live pages: one reader per web process hands the same bytes to all viewers of a scope."""
