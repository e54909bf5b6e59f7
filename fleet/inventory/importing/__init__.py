"""Import of inventory from a file: read, check every row, difference, apply as one change set, undo.

`pipeline` is its door; the steps are `read` (file -> rows), `columns` (what a kind of row holds), `check` (rows -> values and errors),
`difference` (values against the inventory), `stage` (rows in `ImportRow`), `apply` and `undo`.
"""
