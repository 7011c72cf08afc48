"""A newsletter with Django and deferred-django: the smallest project that shows the whole thing."""
