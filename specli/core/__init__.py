"""The algorithm, in pure Python and numpy: nothing here knows of files, libraries or screens."""
