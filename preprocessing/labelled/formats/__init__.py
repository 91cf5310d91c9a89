"""The formats of labelled data: a reader for each, and the table that chooses one by a file's name and first bytes."""
