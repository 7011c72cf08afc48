"""A search through the schedules of two or three processes on one store: see ``__main__``."""
