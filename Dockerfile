# The production image: the same code as everywhere, its static files laid out, an ordinary user.
FROM python:3.12-slim-bookworm

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

RUN useradd --system --create-home --home-dir /var/lib/rollcall --uid 10001 rollcall
WORKDIR /srv/rollcall

COPY requirements.txt constraints.txt ./
RUN pip install --requirement requirements.txt --constraint constraints.txt

COPY manage.py ./
COPY apps ./apps
COPY templates ./templates
COPY static ./static

# What the running containers are told by their environment; no secret is among it.
ENV ROLLCALL_MODE=production \
    ROLLCALL_DATA=/var/lib/rollcall \
    STATIC_ROOT=/srv/rollcall/staticfiles

# Laid out once, here; the values only let the settings load, and nothing is connected to.
RUN SECRET_KEY="$(python -c 'import secrets; print(secrets.token_urlsafe(64))')" \
    DATABASE_URL=postgres://build@localhost/build ALLOWED_HOSTS=localhost \
    python manage.py collectstatic --noinput

USER rollcall
EXPOSE 8000
CMD ["python", "-m", "gunicorn", "apps.config.wsgi", "--config", "python:apps.config.gunicorn", "--bind", "0.0.0.0:8000"]
