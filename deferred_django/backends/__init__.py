"""The stores that tasks are kept in. Nothing is imported before it is asked for."""
