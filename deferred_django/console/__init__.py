"""What the management commands print with: safe text, tables, times, questions.

Nothing here changes a store. The commands parse their arguments, call the backend or the queue,
and print through these modules.
"""
