"""The newsletter: its subscribers, the task that writes to one of them, and the demonstration."""
