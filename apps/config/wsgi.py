"""The WSGI application that gunicorn serves."""

import os

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "apps.config.settings")

application = get_wsgi_application()

# A worker's first request is as fast as its others: all it leads to is loaded before it listens.
assert get_resolver().url_patterns  # noqa: S101  reading them loads them
