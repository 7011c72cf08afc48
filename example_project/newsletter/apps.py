"""The app's configuration."""

from django.apps import AppConfig


class NewsletterConfig(AppConfig):
    """The newsletter."""

    name = "example_project.newsletter"
    label = "newsletter"
